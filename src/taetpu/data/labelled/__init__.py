"""Tasks on rows of tables: texts with classes, numbers or labels of words, and pairs of texts."""
