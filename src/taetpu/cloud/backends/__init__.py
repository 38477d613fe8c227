"""How a slice is made: `base` (the one interface), `gce` (Compute Engine) and `tpu_api` (the Cloud TPU API)."""
