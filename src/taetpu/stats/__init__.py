"""Statistics of a study, without jax.

`linear_model` estimates effects and their intervals, and `verdict` decides the verdicts. `analyse` computes
`results.json` from a study's folder, `verify` recomputes it from the raw logs, and `formatting` formats numbers.
"""
