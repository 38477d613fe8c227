"""The objective, optimizers and schedules, all built from numbers that may be traced."""
