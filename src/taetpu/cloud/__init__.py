"""Cloud TPUs through `gcloud`, OpenSSH and rsync. Nothing here imports jax or the modelling code.

`gcloud` runs one command; `machines` and `rates` know what to ask for; `provision` makes and deletes machines; `ssh`,
`transfer`, `jobs` and `startup` do what happens on them; `supervise` keeps a study training; `bucket`, `image` and
`doctor` are what surrounds it.
"""
