"""Tasks, tokenizers and files of data. The batches of a prepared task are a pure function of a seed and a step."""
