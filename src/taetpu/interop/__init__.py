"""Models from and for other libraries: `huggingface` converts, `families` holds the tables it goes by."""
