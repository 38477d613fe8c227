"""Experiment trackers: TensorBoard, Weights & Biases and trackio. Importing this package does not import jax."""
