"""Independent checks of a machine: its devices, numerics, rates, and a short training run."""
