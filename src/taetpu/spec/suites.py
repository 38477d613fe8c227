"""Suites: sets of tasks that a study file can name in `tasks`."""

from collections.abc import Mapping
from typing import Any

MAD_MEASURE = {"primary": "val/accuracy", "chance": 0.0, "best": 1.0}
"""MAD's score is the mean accuracy, so accuracies are not normalised by chance."""
MAD = ("recall", "noisy-recall", "fuzzy-recall", "selective-copy", "memorization", "compression")

SUITES: Mapping[str, Mapping[str, Any]] = {
    # Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    "mad": {"pool": "mean"} | {f"mad-{n}": {"task": {"kind": f"mad-{n}"}, "measure": MAD_MEASURE} for n in MAD},
}
