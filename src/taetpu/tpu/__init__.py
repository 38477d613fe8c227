"""TPUs: what a machine with one can do."""
