"""`taetpu status`, `list` and `report`: what is stored, without touching it."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.options import AsJson, Root, number
from taetpu.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from taetpu.store.index import StudyEntry
    from taetpu.store.metrics import Series
    from taetpu.store.study import StudyFolder


def list_studies(root: Root = None, as_json: AsJson = False) -> None:
    """Every study under a root and how far it has come.

    Example: taetpu list --root runs
    """
    from taetpu.store.backend import default_root
    from taetpu.store.index import list_studies

    place = default_root(root)
    found = list_studies(place)
    if as_json:
        show_json([_entry(e) for e in found])
    elif not found:
        typer.echo(f"no studies under {place}")
    else:
        show_table([_entry(e) for e in found])


def _entry(entry: "StudyEntry") -> dict[str, Any]:
    return {
        "study": entry.name,
        "arms": entry.arms,
        "seeds": entry.seeds,
        "runs": f"{entry.done}/{entry.total}",
        "changed": entry.changed.strftime("%Y-%m-%d %H:%M"),
        "problem": entry.problem,
    }


def status(
    folder: Annotated[str | None, typer.Argument(metavar="DIR", help="A study's folder, or a root of many.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until all is done; Ctrl-C ends it.")] = False,
    every: Annotated[float, number(least=0.1, metavar="SECONDS", help="How often --watch looks.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """How far each arm of a study has come, with its losses and effect.

    An unfinished study gets no verdict here, but the effects of the runs that have ended.

    Example: taetpu status runs/quickstart --watch
    """
    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root
    from taetpu.store.index import find_studies

    place = folder or default_root()
    studies = find_studies(place)
    if folder and not studies:
        raise UserError("no study is stored here", file=place, remedy="`taetpu list --root DIR` shows what is there")
    if watch and studies:
        _watch(place, every, as_json)
        return
    found = {study.name: _arms(study) if len(studies) == 1 else _arms_or_problem(study) for study in studies}
    for study in studies:
        _warn_of_plan(study)
    if as_json:
        show_json(found)
    elif not found:
        typer.echo(f"no studies under {place}")
    for study in () if as_json else studies:
        typer.echo(study.name)
        _show_status(found[study.name])
        if "problem" not in found[study.name][0]:
            notice(_departures(study))


def _warn_of_plan(study: "StudyFolder") -> None:
    """Print a warning on stderr where the plan of the packs is damaged: no result depends on it, but `run` needs it."""
    from taetpu.core.errors import UserError

    try:
        study.read_plan()
    except UserError as error:
        typer.echo(f"warning: {error.file}: {error.problem}; `taetpu run` needs it: {error.remedy}", err=True)


def _watch(place: str, every: float, as_json: bool) -> None:
    from taetpu.core.errors import UserError

    if as_json:
        raise UserError("--watch shows, and --json prints once", path=("--json",), remedy="leave one of them out")
    from taetpu.cli.watch import watch

    watch(place, every)


def _arms_or_problem(study: "StudyFolder") -> list[dict[str, Any]]:
    """As `_arms`; of a study that cannot be read a row with its problem, so that it does not stop the others."""
    from taetpu.core.errors import UserError

    try:
        return _arms(study)
    except UserError as error:
        return [{"problem": str(error)}]
    except (KeyError, TypeError):
        return [{"problem": f"{study.where}/study.yaml is not that of a study"}]


def _arms(study: "StudyFolder") -> list[dict[str, Any]]:
    """A row for each arm: runs done, the step that all its runs have reached, means of their last training loss and of
    what shows the primary metric, and its effect among the runs that have ended.
    """
    from taetpu.report.summary import mean_places, verdict_label
    from taetpu.stats.analyse import compute_results
    from taetpu.stats.load import read_study
    from taetpu.store.metrics import progress_metric

    frozen = read_study(study)
    runs = [(run, run.status(), run.metrics()) for run in study.runs()]
    found = compute_results(study)
    judged = {arm["name"]: arm for arm in found["arms"]}
    shown = progress_metric(found["primary"], (series for run, _, series in runs if run.arm in frozen["arms"]))
    rows = []
    for arm in frozen["arms"]:
        own = [(status, metrics) for run, status, metrics in runs if run.arm == arm]
        steps = [int(metrics["train/loss"].step[-1]) if "train/loss" in metrics else 0 for _, metrics in own]
        rows.append(
            {
                "arm": arm,
                "done": f"{sum(status == 'done' for status, _ in own)}/{len(frozen['seeds'])}",
                "step": min(steps, default=0),
                "train/loss": _last(own, "train/loss"),
                shown: _last(own, shown),
                "effect": judged[arm]["effect"],
                "ci95": judged[arm]["ci95"],
                "standing": verdict_label(judged[arm]),
                "places": mean_places(found),
            }
        )
    return rows


def _departures(study: "StudyFolder") -> list[str]:
    from taetpu.stats.deviations import find_departures
    from taetpu.stats.load import read_study
    from taetpu.stats.plan import read_plan

    frozen = read_study(study)
    return find_departures(frozen, read_plan(frozen, study.where))


def _show_status(rows: list[dict[str, Any]]) -> None:
    from taetpu.stats import formatting

    if "problem" in rows[0]:
        typer.echo(f"  {rows[0]['problem']}")
        return
    apart = ("effect", "ci95", "standing", "places")
    show_table([{key: _figure(value, row["places"]) for key, value in row.items() if key not in apart} for row in rows])
    effects = [row for row in rows if row["effect"] is not None]
    if not effects:
        return
    interim = any(row["standing"] == "interim" for row in effects)
    typer.echo("interim, of the runs that have ended; verdicts are given when all have:" if interim else "")
    show_table(
        [
            {
                "arm": row["arm"],
                "effect": formatting.effect(row["effect"], row["ci95"], row["places"]),
                "95 % interval": formatting.interval(row["ci95"], row["places"]),
                "verdict": "" if interim else row["standing"],
            }
            for row in effects
        ]
    )


def _figure(value: Any, places: int) -> Any:
    """A mean as text, with the decimals that effects have at least; anything else as it is."""
    from taetpu.stats import formatting

    return formatting.number(value, places) if isinstance(value, float) and math.isfinite(value) else value


def _last(own: list[tuple[str, dict[str, "Series"]]], name: str) -> float | None:
    values = [float(metrics[name].value[-1]) for _, metrics in own if name in metrics]
    return sum(values) / len(values) if values else None


def report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A study's folder.")],
    verify: Annotated[
        bool, typer.Option(help="Write nothing: compute everything anew from the raw metrics, and name what differs.")
    ] = False,
    figures: Annotated[
        str, typer.Option(metavar="pdf|svg|png", help="Also write every chart as a file, below report/figures.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Analyse what is there and write report and results.json.

    Example: taetpu report runs/quickstart
    """
    from taetpu.report.build import build_report
    from taetpu.stats.analyse import analyse
    from taetpu.store.index import find_study

    study = find_study(folder)
    _warn_of_plan(study)
    if verify:
        from taetpu.cli.check import verify_study

        verify_study(study, as_json)
        return
    results = analyse(study)
    written = build_report(study, figures)
    if as_json:
        show_json(results)
    else:
        show(results, written)


def notice(departures: list[str]) -> None:
    """Say what of a study is not as it was planned."""
    for departure in departures:
        say(f"not as planned: {departure}", hanging=2)


def show(results: dict[str, Any], written: dict[str, str]) -> None:
    """The verdict table, and where the report is."""
    from taetpu.report.exports import table_text

    typer.echo(table_text(results))
    notice(results["departures"])
    typer.echo(f"\nreport: {written['html']}")
    if "figures" in written:
        typer.echo(f"figures: {written['figures']}")
