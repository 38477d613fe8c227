"""`taetpu status`, `list` and `ui`: the progress of stored studies, read-only."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.options import AsJson, Root, integer, number
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from taetpu.cli.status_model import StudyMonitor
    from taetpu.store.index import StudyEntry
    from taetpu.store.metrics import Series
    from taetpu.store.study import StudyFolder

HINT_LINES = 2
"""Number of lines below the studies on the live screen."""

Folder = Annotated[str | None, typer.Argument(metavar="DIR", help="A study's folder, or a root of many.")]


def list_studies(root: Root = None, as_json: AsJson = False) -> None:
    """List the studies under a root with their progress.

    Example: taetpu list --root runs
    """
    from taetpu.store.backend import default_root
    from taetpu.store.index import list_studies as find_all

    place = default_root(root)
    found = find_all(place)
    if as_json:
        print_json([_entry(e) for e in found])
    elif not found:
        typer.echo(f"no studies under {place}")
    else:
        print_table([_entry(e) for e in found])


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
    folder: Folder = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update until all studies are done, or Ctrl-C.")] = False,
    every: Annotated[float, number(least=0.1, metavar="SECONDS", help="Interval of --watch.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show each arm's progress, losses and effect.

    An unfinished study has no verdicts yet, but effects of its finished runs.

    Example: taetpu status runs/quickstart --watch
    """
    from taetpu.stats.deviations import study_departures
    from taetpu.store.backend import default_root
    from taetpu.store.index import find_studies

    place = folder or default_root()
    studies = find_studies(place)
    if folder and not studies:
        raise UserError("no study is stored here", file=place, remedy="List studies with `taetpu list --root DIR`.")
    if watch and studies:
        if as_json:
            remedy = "Give one of them."
            raise UserError("--watch and --json exclude each other", path=("--json",), remedy=remedy)
        watch_studies(place, every)
        return
    found = {study.name: _arms(study) if len(studies) == 1 else _arms_or_problem(study) for study in studies}
    for study in studies:
        warn_of_damaged_plan(study)
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(f"no studies under {place}")
    for study in () if as_json else studies:
        typer.echo(study.name)
        _print_arms(found[study.name])
        if "problem" not in found[study.name][0]:
            print_departures(study_departures(study))


def warn_of_damaged_plan(study: "StudyFolder") -> None:
    """Print a warning if the stored pack plan is damaged. Results do not depend on it, but `taetpu run` does."""
    try:
        study.read_plan()
    except UserError as error:
        log(f"warning: {error.file}: {error.problem}; `taetpu run` needs it: {error.remedy}")


def _arms_or_problem(study: "StudyFolder") -> list[dict[str, Any]]:
    """Return the rows of `_arms`, or a row that describes the problem if the study cannot be read."""
    try:
        return _arms(study)
    except UserError as error:
        return [{"problem": str(error)}]
    except (KeyError, TypeError):
        return [{"problem": f"{study.where}/study.yaml does not describe a study"}]


def _arms(study: "StudyFolder") -> list[dict[str, Any]]:
    """Return a row for each arm: finished runs, smallest step, mean last losses, and effect in the finished runs."""
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


def print_departures(departures: list[str]) -> None:
    """Print descriptions of how a study departs from its analysis plan."""
    for departure in departures:
        print_text(f"not as planned: {departure}", hanging=2)


def _print_arms(rows: list[dict[str, Any]]) -> None:
    from taetpu.stats import formatting

    if "problem" in rows[0]:
        typer.echo(f"  {rows[0]['problem']}")
        return
    apart = ("effect", "ci95", "standing", "places")
    print_table(
        [{key: _rounded(value, row["places"]) for key, value in row.items() if key not in apart} for row in rows]
    )
    effects = [row for row in rows if row["effect"] is not None]
    if not effects:
        return
    interim = any(row["standing"] == "interim" for row in effects)
    typer.echo("interim effects of finished runs; verdicts follow when all runs are done:" if interim else "")
    print_table(
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


def _rounded(value: Any, places: int) -> Any:
    """Return a mean rounded to `places` decimal places. Other values are returned unchanged."""
    from taetpu.stats import formatting

    return formatting.number(value, places) if isinstance(value, float) and math.isfinite(value) else value


def _last(own: list[tuple[str, dict[str, "Series"]]], name: str) -> float | None:
    """Return the mean of a metric's last values in the given runs, or None if there are none."""
    values = [float(metrics[name].value[-1]) for _, metrics in own if name in metrics]
    return sum(values) / len(values) if values else None


# --- status --watch --------------------------------------------------------------------------------------------------


def watch_studies(place: str, every: float, console: "Console | None" = None) -> None:
    """Show the studies at `place` every `every` seconds until all are done or Ctrl-C is pressed.

    On a terminal, the studies are shown on a live screen. Otherwise plain text is printed after each change.
    """
    from rich.console import Console

    from taetpu.cli.status_model import StudyMonitor

    console = console or Console()
    try:
        (_watch_live if console.is_terminal else _watch_plain)(StudyMonitor(place), every, console)
    except KeyboardInterrupt:
        return


def _watch_plain(monitor: "StudyMonitor", every: float, console: "Console") -> None:
    from taetpu.cli.status_screen import screen

    shown: list[str] = []
    while True:
        monitor.update()
        lines = [line.plain for line in screen(list(monitor.views.values()), signs=not console.options.ascii_only)]
        if lines != shown:
            print(*([""] if shown else []), *lines, sep="\n", flush=True)
            shown = lines
        if monitor.ended:
            return
        time.sleep(every)


def _watch_live(monitor: "StudyMonitor", every: float, console: "Console") -> None:
    from rich.console import Group
    from rich.live import Live

    from taetpu.cli.status_screen import screen

    signs = not console.options.ascii_only
    with Live(console=console, auto_refresh=False) as live:
        while True:
            monitor.update()
            views = list(monitor.views.values())
            if monitor.ended:  # the final output may have more lines than the terminal
                live.update(Group(*screen(views, signs=signs)))
                return
            hint = ["", f"[dim]every {every:g} s; Ctrl-C stops watching, not the training[/]"]
            live.update(Group(*screen(views, console.height - HINT_LINES - 1, signs), *hint), refresh=True)
            time.sleep(every)


# --- ui --------------------------------------------------------------------------------------------------------------


def ui(
    folder: Folder = None,
    root: Root = None,
    port: Annotated[int, integer(help="The port on 127.0.0.1; 0: any free port.")] = 8765,
) -> None:
    """Serve a live page with progress, curves and effects.

    The page only reads the store.

    Example: taetpu ui runs
    """
    import getpass
    import secrets
    import socket

    from taetpu.store.backend import default_root
    from taetpu.store.gcs_client import parse_address

    try:
        import uvicorn

        from taetpu.ui.pages import Root as StudyRoot
        from taetpu.ui.server import Server
    except ImportError as error:
        remedy = "Run `pip install 'taetpu[ui]'`."
        raise UserError(f"`taetpu ui` requires {error.name}, which is not installed", remedy=remedy) from None
    place = folder or default_root(root)
    if folder and parse_address(folder) is None and not Path(folder).expanduser().is_dir():
        raise UserError("no such folder", file=place, remedy="List studies with `taetpu list --root DIR`.")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        problem = f"cannot listen on port {port}: {getattr(error, 'strerror', None) or error}"
        raise UserError(problem, path=("--port",), remedy="Use another port, or --port 0 for any free port.") from None
    port, token = listener.getsockname()[1], secrets.token_urlsafe(16)
    typer.echo(f"live page: http://127.0.0.1:{port}/?token={token}")
    typer.echo(
        f"over ssh:  ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}   Ctrl-C stops it"
    )
    config = uvicorn.Config(
        Server(StudyRoot(str(place)), token).app(), log_level="warning", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])
