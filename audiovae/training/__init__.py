"""The one training loop and what it needs."""
