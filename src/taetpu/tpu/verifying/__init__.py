"""Checks of a machine: its devices, numerics, rates and a short training run, each independent of the others."""
