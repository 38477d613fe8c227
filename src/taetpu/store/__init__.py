"""Where studies and runs are kept: `backend` (the one small interface), `study` and `runs` (folders), `metrics`
(segments), `index` (what is under a root). Importing any of it imports no jax."""
