"""`taetpu costs`: what the arms of a stored study cost, as ratios to their baselines."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.addresses import Address, resolve_study
from taetpu.cli.lens_options import DataFolder, Picture, Plugins, check_picture, write_picture
from taetpu.cli.options import AsJson, Root, integer, number, takes_options
from taetpu.cli.output import log, print_json, print_text
from taetpu.core.errors import UserError, locate_errors

if TYPE_CHECKING:
    from taetpu.report.costs import Values
    from taetpu.stats.results import Results
    from taetpu.store.study import StudyFolder
    from taetpu.study.costs import TimedArm

LEAST_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True)
class CostsOptions:
    """Options of `taetpu costs`."""

    study: Address
    time: Annotated[
        bool, typer.Option("--time", help="Time a train step and decoding of each arm in turns with its baseline.")
    ] = False
    tpu: Annotated[
        str | None,
        typer.Option(metavar="SLICE", help="Compile for this TPU, such as v5e-1, for its cycles. No TPU is needed."),
    ] = None
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="Measure only this arm. May be repeated.")
    ] = None
    rounds: Annotated[int | None, integer(least=1, help="With --time: the number of rounds. Default: 7.")] = None
    seconds: Annotated[
        float | None, number(least=LEAST_SECONDS, help="With --time: the seconds of each window. Default: 0.5.")
    ] = None
    frontier: Annotated[
        str | None,
        typer.Option(metavar="X,Y", help="Show the arms that no other arm beats in two columns: params,val/loss."),
    ] = None
    out: Picture = None
    plugin: Plugins = None
    root: Root = None
    data_folder: DataFolder = "."
    as_json: AsJson = False


@takes_options
def costs(options: CostsOptions) -> None:
    """Show what arms cost, as ratios to their baselines.

    Parameters, FLOPs per token, the cache and the memory of compiled train steps are counted. With --time, a train step
    and decoding are timed in turns with the baseline, and stored for the report; other processes are observed.

    Example: taetpu costs quickstart --time
    """
    _check(options)
    study = resolve_study(options.study, options.root)
    results = _measure(study, options)
    if options.frontier is not None:
        _show_frontier(study, results, options)
    else:
        _show(study, results, options)


def _check(options: CostsOptions) -> None:
    """Raise `UserError` if options are given without the option that they belong to."""
    for flag, given, needed, has in (
        ("--rounds", options.rounds is not None, "--time", options.time),
        ("--seconds", options.seconds is not None, "--time", options.time),
        ("--out", options.out is not None, "--frontier", options.frontier is not None),
    ):
        if given and not has:
            raise UserError(f"{flag} requires {needed}", path=(flag,), remedy=f"Add {needed}, or remove {flag}.")
    check_picture(options.out)


def _measure(study: "StudyFolder", options: CostsOptions) -> "Results":
    """Measure and store what the options ask for, and return the study's results."""
    from rich.console import Console

    from taetpu.core.jax_setup import prepare_jax
    from taetpu.report.frontier import parse_columns
    from taetpu.stats.load import require_results
    from taetpu.study.progress import parts_bar

    results = require_results(study)
    if options.frontier is not None and not options.time and options.tpu is None:
        parse_columns(options.frontier, results, _read(study, results))  # before work that takes a while
    prepare_jax()
    from taetpu.study.costs import ROUNDS, SECONDS, TurnTimer, measure_memory, open_arms

    arms = open_arms(study, results, options.arm or (), options.plugin or (), Path(options.data_folder))
    console = Console(stderr=True)
    with parts_bar(console, "compiling train steps") as update:
        measure_memory(study, arms, update)
    if options.tpu is not None:
        _compile_for_tpu(study, arms, options)
    if options.time:
        warned: list[float] = []

        def warn(share: float) -> None:
            if not warned:
                log(f"warning: other processes use {share:.0%} of the cores; times are marked")
            warned.append(share)

        timer = TurnTimer(options.rounds or ROUNDS, options.seconds or SECONDS, warn)
        with parts_bar(console, "timing arms") as update:
            timer.measure(study, arms, update)
    return results


def _compile_for_tpu(study: "StudyFolder", arms: "list[TimedArm]", options: CostsOptions) -> None:
    """Compile one run of each arm for a TPU, and store the compiler's cycles."""
    from rich.console import Console

    from taetpu.core.chips import parse_slice
    from taetpu.lens.conversion import Converter
    from taetpu.spec.resolved_study import Sources
    from taetpu.study.costs import store_cycles
    from taetpu.study.progress import parts_bar
    from taetpu.tpu.preflight import PreflightRequest, preflight
    from taetpu.train.layout import Packing

    with locate_errors("--tpu"):
        tpu = parse_slice(str(options.tpu))
    folder, plugins = Path(options.data_folder), tuple(options.plugin or ())
    sources = Sources(folder, arms[0].run.seed, Converter())
    request = PreflightRequest([arm.run for arm in arms], sources, Packing(1), folder, plugins)
    with parts_bar(Console(stderr=True), "compiling for TPU") as update:
        (compiled,) = preflight(request, [tpu], update)
    store_cycles(study, arms, compiled)


def _read(study: "StudyFolder", results: "Results") -> "Values":
    from taetpu.report.costs import read_costs, read_measured

    return read_costs(study, results, read_measured(study, results))


def _show(study: "StudyFolder", results: "Results", options: CostsOptions) -> None:
    from taetpu.cli.report_commands import costs_of, print_verdicts
    from taetpu.report.time_spent import parts_by_arm

    if options.as_json:
        time = parts_by_arm(study.read_pack_times().values())
        print_json({"study": study.name, "arms": _read(study, results), "measured": study.read_costs(), "time": time})
    else:
        print_verdicts(costs_of(study, results))


def _show_frontier(study: "StudyFolder", results: "Results", options: CostsOptions) -> None:
    """Print the arms in two columns, and write their chart."""
    from taetpu.report.chart_files import as_altair
    from taetpu.report.cost_tables import frontier_table
    from taetpu.report.design_charts import frontier_charts
    from taetpu.report.frontier import front_points, parse_columns
    from taetpu.report.terminal_text import text_table

    values = _read(study, results)
    x, y = parse_columns(str(options.frontier), results, values)
    points = front_points(results, values, x, y)
    if options.as_json:
        print_json([{"arm": each["arm"], x: each["cost"], y: each["mean"], "front": each["front"]} for each in points])
    else:
        table = frontier_table(points, x, y, results)
        typer.echo("\n".join(text_table(table.columns, table.rows)))
        noise = ", up to the noise of the metric" if results["primary"] in (x, y) else ""
        print_text(f"front: no other arm is better in both columns, or better in one and equal in the other{noise}")
    write_picture(lambda: as_altair(frontier_charts(results, values)[f"{x} {y}"]), options.out)
