"""Results as CSV with full precision, in a table of arms and a table of runs."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from taetpu.report import summary
from taetpu.report.comparison import Results

ARM = ("name", "against", "change", "planned", "diverged", "mean", "sd", "effect", "effect_sd", "p", "p_holm",
       "p_equivalent", "guarded", "more_seeds", "params", "flops", "tokens")  # fmt: skip
INTERVALS = ("ci95", "ci90", "ci_simultaneous")


def arms_csv(results: Results) -> str:
    """Return CSV with a row for each arm. Missing numbers are empty."""
    ends = [f"{name}_{end}" for name in INTERVALS for end in ("low", "high")]
    lines = [
        [
            *(arm[name] for name in ARM),
            summary.verdict_label(arm),
            *(end for n in INTERVALS for end in arm[n] or (None, None)),
        ]
        for arm in results["arms"]
    ]
    return _csv([*ARM, "verdict", *ends], lines)


def runs_csv(results: Results) -> str:
    """Return CSV with a row for each run, which has the arm, seed, ID, outcome and primary metric."""
    return _csv(
        ["arm", "seed", "id", "outcome", results["primary"]],
        ([arm["name"], *_run(run)] for arm in results["arms"] for run in arm["runs"]),
    )


def _run(run: Mapping[str, Any]) -> list[Any]:
    return [run[name] for name in ("seed", "id", "outcome", "value")]


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return out.getvalue()
