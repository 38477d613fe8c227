"""Where studies and runs are kept: `backend` (the one small interface, and a local folder), `gcs` (a bucket; `lease`
and `listing` are its parts), `keys` (what every place has in common), `study` and `runs` (folders), `metrics`
(segments), `index` (what is under a root). Importing any of it imports no jax."""
