"""Training: one step, a pack of runs in one program, checkpoints, samples, and the loop that drives them."""
