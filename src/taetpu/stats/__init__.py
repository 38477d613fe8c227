"""Statistics of a study, without jax.

`model` estimates effects with intervals, `verdict` judges them, `analyse` turns a study's folder into `results.json`,
`verify` recomputes it from the raw logs, and `formatting` formats numbers.
"""
