"""A run that was made to lie."""

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
