"""Data dirs, audio files, feature archives and batches."""
