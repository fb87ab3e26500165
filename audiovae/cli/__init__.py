"""The command line: one verb a stage."""
