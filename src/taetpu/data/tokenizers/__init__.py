"""Slot `tokenizer`. Every kind is stored as a `tokenizer.json` file for the `tokenizers` library."""
