"""Post-hoc ablation: what a trained model loses without a part, and which activations carry an answer.

`documents` are what losses are measured on, `components` the parts, `replacements` the values that take the place of
their activations, and `sweep` the compiled program that ablates one set of components after the other. `knockout` is
the table of effects.
"""
