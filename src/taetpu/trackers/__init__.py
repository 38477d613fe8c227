"""Where else a study is shown while it trains: TensorBoard, Weights & Biases, trackio. Never imports jax."""
