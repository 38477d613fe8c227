"""Conversion of models from and to other libraries: `huggingface` converts, `families` has the conversion tables."""
