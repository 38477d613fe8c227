"""Text and synthetic tasks. The batches of a prepared task are a pure function of a seed and a step."""
