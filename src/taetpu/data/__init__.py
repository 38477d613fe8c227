"""Tasks, tokenizers, and the files that they read."""
