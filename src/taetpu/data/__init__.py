"""Tasks: text and synthetic. A prepared task hands out batches that are a pure function of a seed and a step."""
