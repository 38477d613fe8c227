"""Cloud TPUs through `gcloud`, OpenSSH and rsync. Nothing here imports jax or the modelling code.

`gcloud` runs gcloud commands. `machine_api` builds the commands for machines, and `zone_rates` gives their prices.
`lifecycle` creates and deletes machines. `ssh`, `transfer`, `startup` and `host_jobs` work on the hosts of a machine.
`supervise` keeps a study training on preemptible machines. `bucket` and `container_image` manage storage and container
images, and `doctor` checks the project.
"""
