"""`taetpu components`: which parts of a model are necessary, redundant or compensated."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.lens_options import Picture, check_picture, write_picture
from taetpu.cli.options import AsJson, Pack, StudyOptions, number, takes_options
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import Failed

if TYPE_CHECKING:
    from taetpu.stats.results import Components, Results


@dataclass(frozen=True, kw_only=True)
class ComponentsOptions(StudyOptions):
    """Options of `taetpu components`."""

    what: Annotated[
        str | None,
        typer.Option(
            help="The parts: branches, mixers, ffns, layers, heads or arms. Default: the arms of leave_one_out, if "
            "any, else branches."
        ),
    ] = None
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="An arm that removes a part. May be repeated.")
    ] = None
    heal: Annotated[float, number(least=0, help="The share of the baseline's steps that heal a removal.")] = 0.1
    equivalence: Annotated[
        float | None, number(least=0, help="The margin of equivalence. Default: measure.equivalence of the study.")
    ] = None
    pack: Pack = "auto"
    out: Picture = None
    as_json: AsJson = False


@takes_options
def components(options: ComponentsOptions) -> None:
    """Tell which parts of a model are necessary or redundant.

    Each part of a trained study's baseline is removed in three ways: trained without it, removed after training, and
    removed and healed by a few more steps. If only the removal after training hurts, the part is compensated. Finished
    runs are reused. Repeat the command to resume.

    Example: taetpu components study.yaml --what layers --equivalence 0.02
    """
    from rich.console import Console

    from taetpu.core.jax_setup import prepare_jax
    from taetpu.study.components import components as measure
    from taetpu.study.progress import StudyProgress

    check_picture(options.out)
    prepare_jax()
    with StudyProgress(Console(stderr=True)) as progress:
        outcome = measure(
            options.study,
            options.sets or (),
            what=options.what,
            arms=options.arm or (),
            heal=options.heal,
            equivalence=options.equivalence,
            root=options.root,
            pack=options.pack,
            callback=progress,
        )
    results, design = outcome.results, outcome.results["designs"].get("components")
    if options.as_json:
        print_json(design)
    elif design:
        _print(results, design, outcome.report["html"])
    if design:
        _picture(results, options.out)
    if outcome.failed:
        runs = sum(len(failure.runs) for failure in outcome.failed)
        raise Failed(f"{runs} runs failed (see above); repeat the command to train these runs again")


def _print(results: "Results", design: "Components", page: str) -> None:
    from taetpu.report.components import part_rows
    from taetpu.stats.plan import describe_metric

    print_table(part_rows(results))
    metric = describe_metric(results["plan"]).label
    print_text(f"effect: on {metric}. without: trained without the part; removed: removed after training; "
               f"healed: removed, then trained for {design['steps']:,} more steps.")  # fmt: skip
    if results["plan"]["equivalence"] is None:
        log("no margin of equivalence, so nothing can be called equivalent: see --equivalence")
    typer.echo(f"\nreport: {page}")


def _picture(results: "Results", file: Path | None) -> None:
    from taetpu.report.charts import themed
    from taetpu.report.components import draw_components

    write_picture(lambda: themed(draw_components(results)), file)
