"""Small models and token numbers for tests of post-hoc ablation."""

import numpy as np

SEQ, VOCAB = 10, 11
ROWS = [np.random.default_rng(i).integers(0, VOCAB, 5 + i % 3).tolist() for i in range(6)]
ATTENTION = {"kind": "attention", "num_heads": 2}
MODELS = {
    "pre": {"mixer": ATTENTION},
    "post": {"mixer": ATTENTION, "norm": {"kind": "layer", "placement": "post"}},
    "different heads": {"mixer": ATTENTION, "layers": {1: {"mixer": {"kind": "attention", "num_heads": 4}}}},
    "values of layer 0": {"mixer": {**ATTENTION, "values": "residual"}},
    "hyper-connections": {"mixer": ATTENTION, "residual": "hyper-connections"},
}
