"""Cloud TPUs: from an empty project to a machine that trains, and back to nothing. Nothing here imports jax or the
modelling code; Google's clients are imported where they are used, from the extra `taetpu[gcp]`.

`settings` (what is yours), `catalogue` (what there is), `spec` (what a stack should be), `backends` (how it is made),
`state` and `reconcile` (made once, found again, removed), `ssh`, `jobs` and `vm` (what runs there), `bucket`, `image`,
`cost`, `doctor`, `supervise` (a study on a TPU) and `fakes` (all of it offline).
"""
