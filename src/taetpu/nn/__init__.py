"""The model. Each slot has a file with the configs and modules of its kinds. `block`, `stack` and `lm` combine them."""
