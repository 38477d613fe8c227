"""Forged runs, and studies without digests."""

import json
from pathlib import Path

import pytest

from taetpu.core.identity import SCHEMA
from taetpu.store import runs
from taetpu.store.runs import RunFolder

REMOVED = ("digest", "files", "run")


def forged(run: RunFolder) -> None:
    """Reduce the final loss by 0.01 consistently in the result, the log and the evaluation sums."""
    result, series, sums = run.result(), run.metrics(), run.evaluation()
    result["metrics"]["val/loss"] -= 0.01
    series["val/loss"].value[-1] = result["metrics"]["val/loss"]
    sums["val/nll"][0] += result["metrics"]["val/loss"] * sums["val/weight"].sum() - sums["val/nll"].sum()
    for name in ("result.json", "metrics"):
        run.store.delete(f"{run.key}/{name}")
    run.append(0, result["steps"], {name: (s.step, s.value) for name, s in series.items()})
    run.write_evaluation(sums)
    run.finish(result)


def accept_unsealed(patch: pytest.MonkeyPatch) -> None:
    """Accept documents without digests, as if this version wrote none."""
    patch.setattr(runs, "SEALED_SCHEMA", SCHEMA + 1)


def unsealed(study: Path, patch: pytest.MonkeyPatch) -> Path:
    """Remove the digests from a study's folder, so that tests reach the checks behind them."""
    accept_unsealed(patch)
    for file in study.glob("runs/*/*/*.json"):
        if file.name in ("config.json", "result.json"):
            data = json.loads(file.read_text())
            file.write_text(json.dumps({name: value for name, value in data.items() if name not in REMOVED}))
    file = study / "study.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("#")))
    return study
