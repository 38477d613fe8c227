"""Cloud TPUs through `gcloud`, OpenSSH and rsync. Nothing here imports jax or the modelling code.

`gcloud` runs one command; `machines` has the commands for machines and `rates` their prices; `provision` makes and
deletes machines; `ssh`, `transfer`, `startup` and `jobs` work on their hosts; `supervise` keeps a study training on
preemptible machines; `bucket`, `image` and `doctor` manage storage, containers and the project.
"""
