"""Post-hoc ablation: what a trained model loses without a part, and which activations carry an answer.

`documents` are what losses are measured on, `components` the parts, `replacements` the values that take the place of
their activations (`optimal` fits some of them), and `sweep` the compiled program that ablates one set of components
after the other. On these stand `knockout`, the table of effects; `pruning`, curves and pairs; `patching` and
`path_patching`.
"""
