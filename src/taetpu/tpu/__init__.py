"""TPUs: what a study would need of one, found out with the real compiler and no chip; and whether a machine is sane."""
