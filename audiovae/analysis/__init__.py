"""What a trained model is worth: figures, tables and plots."""
