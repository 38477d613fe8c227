"""Independent checks of a machine: devices, numerics, rates and a short training run."""
