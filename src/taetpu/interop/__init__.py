"""Conversion of models from and to other libraries. `huggingface` converts models by the tables in `families`."""
