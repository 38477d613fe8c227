"""Runs that were made to lie, and studies without digests."""

import json
from pathlib import Path

from taetpu.store.runs import RunFolder


def forged(run: RunFolder) -> None:
    """A loss that is less by 0.01 at the end, in the result, the log and the sums over the evaluation set alike."""
    result, series, sums = run.result(), run.metrics(), run.evaluation()
    result["metrics"]["val/loss"] -= 0.01
    series["val/loss"].value[-1] = result["metrics"]["val/loss"]
    sums["val/nll"][0] += result["metrics"]["val/loss"] * sums["val/weight"].sum() - sums["val/nll"].sum()
    for name in ("result.json", "metrics"):
        run.store.delete(f"{run.key}/{name}")
    run.append(0, result["steps"], {name: (s.step, s.value) for name, s in series.items()})
    run.write_evaluation(sums)
    run.finish(result)


def unsealed(study: Path) -> Path:
    """Leave out the digests of a study's folder, as in one of an earlier version, or of a thorough forger."""
    for file in study.glob("runs/*/*/*.json"):
        if file.name in ("config.json", "result.json"):
            data = json.loads(file.read_text())
            file.write_text(
                json.dumps({name: value for name, value in data.items() if name not in ("digest", "files")})
            )
    file = study / "study.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("#")))
    return study
