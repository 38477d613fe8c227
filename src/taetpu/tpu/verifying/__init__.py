"""Is this machine sane: checks of its devices, numbers, rates and training, each on its own."""
