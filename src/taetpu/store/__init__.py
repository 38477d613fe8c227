"""Storage of studies and runs, in a local folder or a bucket of Cloud Storage. Importing it imports no jax.

`backend` is the interface and the local store; `gcs`, `gcs_client`, `gcs_cache` and `lease` are the bucket store;
`names` has key names and shared errors. `study`, `runs` and `packs` are the folders of a study, `metrics`,
`documents`, `digests` and `settings` their contents. `index` lists the studies under a root, and `frame` returns
metrics as a table.
"""
