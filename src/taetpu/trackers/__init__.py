"""Experiment trackers: TensorBoard, Weights & Biases and trackio. Importing it imports no jax."""
