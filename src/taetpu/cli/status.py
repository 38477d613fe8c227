"""`taetpu status`, `list` and `ui`: the progress of stored studies, read-only."""

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.addresses import OptionalAddress, resolve_address
from taetpu.cli.options import AsJson, Root, integer
from taetpu.cli.output import build_table, print_json, print_rows, print_text, wrap
from taetpu.core.errors import UserError
from taetpu.core.streams import escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from taetpu.cli.status_model import StudyMonitor, StudyProgress

EVERY = 2.0
"""Seconds between updates of `--watch`."""
BAR = 16
"""Width of a study's progress bar."""
APART = ("effect", "ci95", "standing", "places", "value_places", "diverged", "failed", "time")
"""Keys of an arm's row that are not columns of the table."""
MOST_FAILED = 10
"""Maximum number of failed attempts that are listed."""


def list_studies(
    root: Root = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUE", help="List runs with this setting (also !=, <, <=, >, >=). May be repeated."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE", help="List runs written on or after this date.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DATE", help="List runs written before this date.")] = None,
    as_json: AsJson = False,
) -> None:
    """List studies with their progress, or runs by settings and dates.

    Example: taetpu list --where "model.dim>=64" --since 2026-11-01
    """
    if where or since or until:
        _list_runs(root, where or [], since, until, as_json=as_json)
        return
    from taetpu.store.backend import default_root
    from taetpu.store.index import list_studies as find_all

    place = default_root(root)
    rows = [
        {
            "study": entry.name,
            "arms": entry.arms,
            "seeds": entry.seeds,
            "runs": f"{entry.done}/{entry.total}",
            "changed": entry.changed.strftime("%Y-%m-%d %H:%M"),
            "problem": entry.problem,
        }
        for entry in find_all(place)
    ]
    print_rows(rows, as_json, f"no studies under {place}")


def _list_runs(root: str | None, where: list[str], since: str | None, until: str | None, *, as_json: bool) -> None:
    from taetpu.stats.load import run_state
    from taetpu.store.backend import default_root
    from taetpu.store.run_filter import find_runs, parse_condition, parse_date

    place, conditions = default_root(root), [parse_condition(text) for text in where]
    runs = find_runs(place, conditions, *(None if text is None else parse_date(text) for text in (since, until)))
    rows = [
        {
            "run": f"{run.folder.study}/{run.folder.arm}/{run.folder.seed}",
            "id": run.folder.id,
            "status": run_state(run.folder),
            "changed": run.changed.strftime("%Y-%m-%d %H:%M"),
            **{
                condition.path: ", ".join(dict.fromkeys(map(str, condition.values(run.settings))))
                for condition in conditions
            },
        }
        for run in runs
    ]
    print_rows(rows, as_json, f"no such runs under {place}")


def status(
    address: OptionalAddress = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update until all studies are done or Ctrl-C is pressed.")
    ] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Show each arm's progress, losses and effect.

    For an unfinished study, the effects of its finished runs are shown, without verdicts.

    Example: taetpu status quickstart --watch
    """
    from taetpu.cli.status_model import StudyMonitor
    from taetpu.store.backend import default_root

    place = default_root(root)
    match = None if address is None else resolve_address(address, root)
    monitor = StudyMonitor(place if match is None else match.place, match)
    studies = monitor.update()
    if watch and as_json:
        problem = "--watch and --json cannot be used together"
        raise UserError(problem, path=("--json",), remedy="Use only one of these options.")
    if watch and studies:
        watch_studies(monitor)
        return
    if len(studies) == 1:
        for error in studies[0].feed.errors:
            raise error
    if as_json:
        print_json({study.name: study.arms() for study in studies})
    elif studies:
        from rich.console import Console

        console = Console()
        console.print(render(studies, console), soft_wrap=True)
    else:
        typer.echo(f"no studies under {place}")


def print_departures(departures: list[str]) -> None:
    """Print descriptions of how a study departs from its analysis plan."""
    for departure in departures:
        print_text(f"not as planned: {departure}", hanging=2)


# --- the screen of a study -------------------------------------------------------------------------------------------


def render(studies: "Iterable[StudyProgress]", console: "Console") -> "Group":
    """Return the screen of the given studies, with at most 80 columns unless an arm's numbers need more."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for study in studies:
        parts += [Text()] * bool(parts) + [_progress_line(study, console)]
        if study.feed.problem:
            parts.append(Text(study.feed.problem, "red"))
        else:
            parts += _details(study, console)
    return Group(*parts)


def _progress_line(study: "StudyProgress", console: "Console") -> "Text":
    """Return the progress of a study, such as `name ━━━━━━━━ 12/27 runs`."""
    from rich.text import Text

    full = BAR * study.done // max(study.total, 1)
    signs = "#." if console.options.ascii_only else "━─"
    counts = f" {study.done}/{study.total} runs"
    counts += "" if study.done < study.total or study.ended else ", not finished"
    bar = (signs[0] * full, "green"), (signs[1] * (BAR - full), "dim")
    return Text.assemble((f"{study.name} ", "bold"), *bar, counts)


def _details(study: "StudyProgress", console: "Console") -> "list[Text | Table]":
    """Return the headline, the departures from the plan, the packs in training, the time and the table of arms."""
    from rich.text import Text

    from taetpu.report.verdict_style import VERDICTS
    from taetpu.stats import formatting
    from taetpu.stats.deviations import study_departures

    sentences = [study.feed.effects["headline"]]
    sentences += [f"not as planned: {departure}" for departure in study_departures(study.folder)]
    rows, cells = study.arms(), list[dict[str, Any]]()
    interim = any(row["standing"] == "interim" for row in rows)
    for row in rows:
        known, places = row["effect"] is not None, row["places"]
        measured = [name for name in row if name not in APART]
        cells.append({study.feed.label(name): _rounded(row[name], row["value_places"]) for name in measured})
        cells[-1]["effect"] = formatting.effect(row["effect"], row["ci95"], places) if known else ""
        judged = formatting.interval(row["ci95"], places) if interim else row["standing"]
        outcome = [judged] if known or (not interim and row["standing"] in VERDICTS) else []
        outcome += [f"{row['diverged']} diverged"] if row["diverged"] else []
        cells[-1]["95 % interval" if interim else "verdict"] = ", ".join(outcome)
    failed = [_describe_failure(row["arm"], attempt) for row in rows for attempt in row.get("failed", ())]
    if len(failed) > MOST_FAILED:
        failed[MOST_FAILED:] = [f"and {len(failed) - MOST_FAILED} more failed attempts"]
    lines = [Text(wrap(line, hanging=2)) for line in (*sentences, *study.packs(), *study.time_spent(), *failed)]
    return [*lines, build_table(cells, console)]


def _describe_failure(arm: str, attempt: "Mapping[str, Any]") -> str:
    """Return a line about a failed attempt of a program (see `status_model.failed_attempt`)."""
    where = f"{arm} on seed {attempt['seed']}: attempt {attempt['attempt']}"
    return escape_controls(f"{where} ended without a result, {attempt['how']}; output: {attempt['log']}")


def _rounded(value: Any, places: int) -> Any:
    """Return a mean rounded to `places` decimal places. Other values are returned unchanged."""
    from taetpu.stats import formatting

    return formatting.number(value, places) if isinstance(value, float) and math.isfinite(value) else value


def watch_studies(monitor: "StudyMonitor", console: "Console | None" = None) -> None:
    """Show studies on a live screen until all have ended, then print their final state. Ctrl-C ends without printing.

    If the output is not a terminal, only the final state is printed.
    """
    from rich.console import Console, Group
    from rich.live import Live

    console = console or Console()
    hint = "\n[dim]Ctrl-C stops watching, not the training[/]"
    studies = monitor.update()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not all(study.ended for study in studies):
                live.update(Group(render(studies, console), hint), refresh=True)
                time.sleep(EVERY)
                studies = monitor.update()
    except KeyboardInterrupt:
        return
    console.print(render(studies, console), soft_wrap=True)


# --- ui --------------------------------------------------------------------------------------------------------------


def ui(
    address: OptionalAddress = None,
    root: Root = None,
    port: Annotated[int, integer(least=0, most=65535, help="The port on 127.0.0.1. 0 selects any free port.")] = 8765,
) -> None:
    """Serve a live page with progress, curves and effects.

    The page only reads the store.

    Example: taetpu ui quickstart
    """
    import getpass
    import secrets
    import socket

    from taetpu.store.backend import default_root

    try:
        import uvicorn

        from taetpu.ui.page_data import Root as StudyRoot
        from taetpu.ui.page_data import page_path
        from taetpu.ui.server import Server
    except ImportError as error:
        remedy = "Run `pip install 'taetpu[ui]'`."
        raise UserError(f"`taetpu ui` requires {error.name}, which is not installed", remedy=remedy) from None
    place, page = default_root(root), "/"
    if address is not None:
        match = resolve_address(address, root)
        place, page = match.place, page_path(match)
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        problem = f"cannot listen on port {port}: {error.strerror}"
        raise UserError(problem, path=("--port",), remedy="Use another port, or --port 0 for any free port.") from None
    port, token = listener.getsockname()[1], secrets.token_urlsafe(16)
    typer.echo(f"live page: http://127.0.0.1:{port}{page}?token={token}")
    typer.echo(
        f"over ssh:  ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"
        "   Ctrl-C stops the server"
    )
    config = uvicorn.Config(Server(StudyRoot(place), token).app(), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])
