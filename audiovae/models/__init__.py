"""The generative model, one part a file."""
