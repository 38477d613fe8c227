"""`taetpu lens knockout`: the rise of the loss without parts of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.lens_options import (
    Layer,
    Picture,
    TextOptions,
    check_picture,
    read_lines,
    write_picture,
)
from taetpu.cli.options import integer, number, takes_options
from taetpu.cli.output import log, plural, print_json, print_table, print_text
from taetpu.core.errors import ErrorList, UserError, check_known
from taetpu.core.progress import show_progress

if TYPE_CHECKING:
    from taetpu.lens.ablation.documents import Documents
    from taetpu.lens.ablation.knockout import Knockouts
    from taetpu.lens.opened import OpenedModel

WHAT = "heads, kv-groups, mixers, ffns, layers, neurons, experts, states, positions, or a site"
HOW = "zero, mean, resample, counterfactual, noise or optimal"
MODES = ("each", "pairs", "greedy", "importance", "blocks")
DOCUMENTS = 64
"""The default of `--documents`."""
METHODS_OF = {
    "by_position": ("mean",), "reference": ("mean", "resample", "noise", "optimal"),
    "counterfactual": ("counterfactual",), "sigma": ("noise",), "draws": ("resample", "noise"), "steps": ("optimal",),
}  # fmt: skip
"""The methods to which an option applies."""


@dataclass(frozen=True, kw_only=True)
class KnockoutOptions(TextOptions):
    """Options of `taetpu lens knockout`."""

    what: Annotated[str, typer.Option(help=f"What is removed: {WHAT}.")] = "heads"
    how: Annotated[str | None, typer.Option(help=f"Its replacement: {HOW}. Default: mean; zero for layers.")] = None
    mode: Annotated[
        str, typer.Option(help="Remove each part alone, each pair, or a growing set: greedy, importance or blocks.")
    ] = "each"
    layer: Layer = None
    lines: Annotated[bool, typer.Option("--lines", help="Read each line as a document.")] = False
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read an evaluation set of the run, such as val.")
    ] = None
    documents: Annotated[
        int | None, integer(least=1, help=f"The maximum number of documents of --split. Default: {DOCUMENTS}.")
    ] = None
    at: Annotated[str, typer.Option(metavar="all|last", help="Which targets of a document are scored.")] = "all"
    by_position: Annotated[bool, typer.Option("--by-position", help="For mean: use the mean at each position.")] = False
    counterfactual: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For counterfactual: a line for each document.")
    ] = None
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For mean, resample, noise and optimal: other texts to use. Default: the documents."
        ),
    ] = None
    sigma: Annotated[float | None, number(least=0, help="For noise: its size, in standard deviations. Default: 3.")] = (
        None
    )
    draws: Annotated[int | None, integer(least=1, help="For resample and noise: the number of draws. Default: 3.")] = (
        None
    )
    steps: Annotated[int | None, integer(least=0, help="For optimal: the number of steps. Default: 50.")] = None
    seed: Annotated[int, integer(least=0, help="The seed of draws and intervals.")] = 0
    controls: Annotated[
        bool | None,
        typer.Option(
            "--controls/--no-controls",
            help="With --mode each: also measure with frozen norms, and direct effects. Default: both.",
        ),
    ] = None
    top: Annotated[int, integer(least=1, help="The number of components in the table.")] = 20
    out: Picture = None


@takes_options
def knockout(options: KnockoutOptions) -> None:
    """Measure how much the loss rises without each part of a model.

    Each part is removed alone. Effects have intervals that hold for all parts together, over documents: the lines of a
    text (--lines), the windows of a long text, or those of an evaluation set (--split).

    Example: taetpu lens knockout latest --split val --what heads -o heads.png
    """
    from taetpu.lens.ablation.components import find_components

    check_picture(options.out)
    _check_options(options)
    model = options.open()
    documents = _read(options, model)
    components = find_components(model, options.what, options.layer, max(map(len, documents.inputs)))
    method = _method(options, model)
    with show_progress("knock-outs") as progress:
        result = _measure(options, model, documents, components, method, progress)
    if options.as_json:
        print_json(result.to_dict())
    elif options.mode == "each":
        print_found(result, options.top)
    else:
        _print_steps(result, options)
    if options.mode != "pairs":
        write_picture(result.chart, options.out)


def _check_options(options: KnockoutOptions) -> None:
    """Raise `UserError` for values that do not exist, and for options that have no effect."""
    from taetpu.lens.ablation.replacements import METHODS

    check_known(options.mode, MODES, f"unknown mode {options.mode!r}", path=("--mode",))
    if options.mode == "pairs" and options.out is not None:
        raise UserError("pairs have no picture", path=("--out",), remedy="Remove --out, or use --json.")
    how = _how(options)
    check_known(how, METHODS, f"unknown replacement {how!r}", path=("--how",))
    errors = ErrorList()
    for name, methods in METHODS_OF.items():
        option, value = f"--{name.replace('_', '-')}", getattr(options, name)
        if value not in (None, False) and how not in methods:
            problem = f"{option}{'' if value is True else f' {value}'} has no effect with --how {how}"
            remedy = f"Remove {option}, or use --how {' or '.join(methods)}."
            errors.append(UserError(problem, path=(option,), remedy=remedy))
    if options.split is not None and options.lines:
        problem = f"--lines requires a text, but the documents are windows of the evaluation set {options.split!r}"
        errors.append(UserError(problem, path=("--lines",), remedy="Remove --lines or --split."))
    if options.split is None and options.documents is not None:
        problem = f"--documents {options.documents} requires --split"
        errors.append(UserError(problem, path=("--documents",), remedy="Add --split, or remove --documents."))
    if options.controls is not None and options.mode != "each":
        option = "--controls" if options.controls else "--no-controls"
        problem = f"{option} has no effect with --mode {options.mode}"
        errors.append(UserError(problem, path=(option,), remedy=f"Remove {option}, or use --mode each."))
    errors.raise_all()


def _how(options: KnockoutOptions) -> str:
    from taetpu.lens.ablation.replacements import default_how

    return options.how or default_how(options.what)


def _measure(options: KnockoutOptions, model: "OpenedModel", *what: Any) -> Any:
    """Return the result of a mode for documents, components, a method and a function that shows progress."""
    from taetpu.lens.ablation.knockout import knockout as measure
    from taetpu.lens.ablation.pruning import pair_effects, prune

    *given, progress = what
    if options.mode == "each":
        return measure(model, *given, controls=options.controls is not False, progress=progress, report=log)
    if options.mode == "pairs":
        return pair_effects(model, *given, progress=progress, report=log)
    return prune(model, *given, order=options.mode, progress=progress, report=log)


def _print_steps(result: Any, options: KnockoutOptions) -> None:
    """Print pairs or the steps of a curve."""
    rows = result.rows()
    shown = rows[: options.top if options.mode == "pairs" else None]
    print_table([{name: _format(value) for name, value in row.items()} for row in shown])
    if options.mode == "pairs":
        if more := len(rows) - len(shown):
            size = f"{abs(rows[len(shown)]['interaction']):.4f}"
            print_text(f"{plural(more, 'further pair')}, with interactions of at most ±{size}: see --top and --json")
        print_text("joint: the rise of the loss without both, in nats per target; interaction: joint, minus the sum of "
                   "both effects alone. Above 0, one compensates for the other.")  # fmt: skip
    else:
        print_text(f"effect: the rise of the loss, in nats per target, from {result.intact:.4f} for the intact model")


def _read(options: KnockoutOptions, model: "OpenedModel") -> "Documents":
    """Return the documents on which effects are measured."""
    from taetpu.lens.ablation.documents import read_documents, split_documents
    from taetpu.lens.losses import find_split

    if options.at not in ("all", "last"):
        raise UserError(f"unknown targets {options.at!r}", path=("--at",), remedy="Use all or last.")
    if options.split is None:
        documents = read_documents(model, options.read(model, options.lines))
    elif options.file or options.text or options.ids:
        problem = "a text and an evaluation set are given"
        raise UserError(problem, path=("--split",), remedy="Use a text or --split.")
    else:
        documents = split_documents(find_split(model, options.split), options.documents or DOCUMENTS)
    return documents if options.at == "all" else documents.last()


def _method(options: KnockoutOptions, model: "OpenedModel") -> Any:
    from taetpu.lens.ablation.replacements import DRAWS, SIGMA, STEPS, Method

    def lines(file: Path | None, option: str) -> "Documents | None":
        return None if file is None else read_lines(model, file, option)

    return Method(
        _how(options),
        by_position=options.by_position,
        reference=lines(options.reference, "--reference"),
        counterparts=lines(options.counterfactual, "--counterfactual"),
        sigma=SIGMA if options.sigma is None else options.sigma,
        draws=options.draws or DRAWS,
        steps=STEPS if options.steps is None else options.steps,
        seed=options.seed,
    )


def _format(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:+.4f}" if value == value else "-"


def print_found(knockouts: "Knockouts", top: int) -> None:
    """Print the largest effects, with intervals and controls."""
    effects, rows = knockouts.effect, knockouts.rows()
    has_interval = effects.has_intervals
    table = []
    for row in rows[:top]:
        cells = {"component": row["component"], "effect": f"{row['effect']:+.4f}"}
        if has_interval:
            has_ends = row["low"] == row["low"]  # an effect that varies between too few documents has none
            cells["95 % interval"] = f"{row['low']:+.4f} to {row['high']:+.4f}" if has_ends else "-"
        table.append(cells | {name: f"{row[name]:+.4f}" for name in knockouts.effects if name != "effect"})
    print_table(table)
    if len(rows) > top:
        low, high = rows[-1]["effect"], rows[top]["effect"]
        others = f"{len(rows) - top:,} further {knockouts.components.what}"
        print_text(f"{others}, with effects from {low:+.4f} to {high:+.4f}: see --top and --json")
    loss, error = knockouts.intact
    noise = "" if error != error else f" ± {error:.4f}"
    print_text(f"loss of the intact model: {loss:.4f}{noise} nats per target, over {knockouts.over}")
    print_text("effect: the loss without the part, minus that of the intact model. It is a lower bound of what the "
               "part does, because later parts may compensate.")  # fmt: skip
    if knockouts.method.how in ("mean", "optimal"):
        print_text("means and constants are taken over all positions with a target: of a text, all but the last")
    if not has_interval:
        from taetpu.stats.document_effects import LEAST

        log(f"no intervals: they need at least {LEAST} documents (see --lines and --split)")
