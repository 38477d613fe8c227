"""Storage of studies and runs in a local folder or a Cloud Storage bucket. Importing this package does not import jax.

`backend` defines the interface and the local store. `gcs`, `gcs_client`, `gcs_cache` and `lease` implement the bucket
store. `errors` defines key names and shared errors. `study`, `runs` and `pack_checkpoints` define the folders of a
study; `metrics`, `documents`, `digests` and `flat_config` define the contents of these folders. `index` lists the
studies under a root, and `frame` returns metrics as a table.
"""
