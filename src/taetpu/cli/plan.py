"""`taetpu plan`: a study's runs, sizes and packs, and a proof that each arm changes only its declared fields."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.options import AsJson, LibtpuArgs, Pack, StudyOptions, XlaFlags, integer, number, takes_options
from taetpu.cli.output import plural, print_json, print_table, print_text
from taetpu.cli.plan_coordinates import SEEDS, STEPS, measure_coordinates, parse_widths, print_coordinates
from taetpu.cli.plan_resolution import describe_resolution
from taetpu.cli.plan_tpu import (
    compile_for,
    format_seconds,
    largest_capabilities,
    print_slices,
    refuse_oversized,
    requested_slices,
)
from taetpu.cli.program_studies import has_program, plan_program
from taetpu.core.errors import UserError

RULE = "rule of thumb"
"""How a layout was chosen if nobody asked for it (`PackPlan.chosen`)."""
OTHER_DATA = "different data than in the baseline, or in a different order"


@dataclass(frozen=True, kw_only=True)
class PlanOptions(StudyOptions):
    """Options of `taetpu plan`."""

    diff: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Show only the changes of this arm: config, parameters and program."),
    ] = None
    pack: Pack = "auto"
    noise: Annotated[
        float | None, number(help="Standard deviation between runs, to compute which effects the study can detect.")
    ] = None
    effect: Annotated[
        float | None, number(help="A true effect, to compute how many seeds are needed to detect it.")
    ] = None
    tpu: Annotated[
        str | None,
        typer.Option(
            help="Compile every program for this TPU, such as v5e-8 or v5e:2x4, and estimate memory, speed and cost. "
            "No TPU is needed. `all` compares the generations."
        ),
    ] = None
    coordinates: Annotated[
        bool,
        typer.Option(
            "--coordinates",
            help="Train the arms for a few steps at several widths, and show how the sizes of activations depend on "
            "the width: the coordinate check of muP.",
        ),
    ] = False
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", metavar="ARM", help="With --coordinates: only this arm. May be repeated."),
    ] = None
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="DIM,...", help="With --coordinates: the widths. Default: 1/2, 1, 2 and 4 times model.dim."
        ),
    ] = None
    check_steps: Annotated[
        int | None, integer(least=1, help=f"With --coordinates: the number of training steps. Default: {STEPS}.")
    ] = None
    check_seeds: Annotated[
        int | None, integer(least=1, help=f"With --coordinates: the number of seeds. Default: {SEEDS}.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="With --coordinates: write a chart to this file: .svg, .pdf, .png, .html or .json.",
        ),
    ] = None
    xla_flags: XlaFlags = ""
    libtpu_args: LibtpuArgs = ""
    as_json: AsJson = False


COORDINATE_OPTIONS = ("arm", "widths", "check_steps", "check_seeds", "out")


@takes_options
def plan(options: PlanOptions) -> None:
    """Show arms, sizes and packs without training.

    Also proves that each arm changes only its declared fields. With --coordinates, trains a few steps and shows how
    activations scale with the width instead.

    Example: taetpu plan study.yaml --tpu v5e-8
    """
    from taetpu.core.jax_setup import prepare_jax
    from taetpu.core.xla_flags import set_flags

    if has_program(options.study):
        plan_program(options)
        return
    slices = requested_slices(options.tpu)
    if slices and options.diff is not None:
        problem = "--tpu and --diff cannot be used together, because an arm has the same changes on every machine"
        raise UserError(problem, path=("--tpu",), remedy="Use only one of these options.")
    _check_coordinate_options(options)
    set_flags(options.xla_flags, options.libtpu_args, compiles=bool(slices))
    prepare_jax(cpu=bool(slices))
    from rich.console import Console

    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.study.loading import load_study
    from taetpu.study.preview import diff_arm, prepare_study, preview
    from taetpu.study.progress import parts_bar
    from taetpu.train.layout import parse_packing

    packing = parse_packing(options.pack)
    study = load_study(options.study, options.sets or [])
    if options.coordinates:
        steps, seeds = options.check_steps or STEPS, options.check_seeds or SEEDS
        widths = parse_widths(options.widths)
        result = measure_coordinates(study, options.arm or [], widths, steps, seeds, options.out)
        show = print_coordinates
    elif options.diff is not None:
        result, show = diff_arm(study, options.diff), _print_changes
    else:
        folder = StudyFolder(open_store(default_root(options.root)), study.name)
        with parts_bar(Console(stderr=True), "checking arms") as update:
            ready = prepare_study(study, folder, update, largest_capabilities(slices))
            here = None if slices else packing
            result = preview(ready, folder, here, programs=options.as_json, noise=options.noise, effect=options.effect)
        show = _print_plan
        if slices:
            result["tpu"] = compile_for(ready, packing, slices)
    print_json(result) if options.as_json else show(result)
    refuse_oversized(result.get("tpu", []))


def _check_coordinate_options(options: PlanOptions) -> None:
    """Raise `UserError` if options of `--coordinates` are given without it, or with options of other results."""
    for name in COORDINATE_OPTIONS if not options.coordinates else ():
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} requires --coordinates", path=(flag,), remedy="Add --coordinates.")
    for name in ("diff", "tpu") if options.coordinates else ():
        if getattr(options, name) is not None:
            problem = f"--coordinates and --{name} cannot be used together"
            raise UserError(problem, path=("--coordinates",), remedy="Use only one of these options.")
    parse_widths(options.widths)


def _print_plan(planned: dict[str, Any]) -> None:
    """Print the arms, notes and packs in the result of `study.preview.preview`, and the slices of `--tpu`."""
    arms, seeds = plural(len(planned["arms"]), "arm"), plural(len(planned["seeds"]), "seed")
    typer.echo(f"{planned['study']}: {arms} x {seeds}, {plural(planned['steps'], 'step')}")
    for what in ("preset", "start"):
        if origin := planned[what]:
            from taetpu.spec.document import format_yaml

            model = ", ".join(f"{name} {format_yaml(value)}" for name, value in origin["model"].items())
            print_text(f"{what} {origin['name']}: {model}\n", hanging=2)
    idle = any(arm["executed_flops_per_token"] != arm["flops_per_token"] for arm in planned["arms"])
    typer.echo("task: " + ", ".join(f"{key} {value}" for key, value in planned["task"].items()) + "\n")
    print_table(
        [
            {
                "arm": arm["name"],
                "changes": arm["change"],
                "params": arm["params"],
                "FLOPs/token": arm["flops_per_token"],
                **({"executed": arm["executed_flops_per_token"]} if idle else {}),
                "done": f"{arm['done']}/{arm['runs']}",
            }
            for arm in planned["arms"]
        ]
    )
    for note in _notes(planned):
        typer.echo("")
        print_text(note)
    typer.echo("")
    if planned["packs"]:
        print_table(
            [_pack_row(list(packs)) for _, packs in groupby(planned["packs"], key=lambda pack: pack["program"])]
        )
        for note in _layout_notes(planned["packs"], planned["at_once"]):
            print_text(note)
        typer.echo("")
    _print_work(planned)
    if "tpu" in planned:
        typer.echo("")
        print_slices(planned["tpu"])


def _print_work(planned: dict[str, Any]) -> None:
    """Print the remaining work, whether it fits into memory, and how long it takes."""
    if not planned["tokens"]:
        typer.echo("nothing is left to train")
        return
    typer.echo(f"to train: {plural(planned['tokens'], 'token')}, {planned['flops']:.3g} FLOPs")
    for shortage in planned["memory"]:
        needed, available = (f"{shortage[name] / 2**30:,.1f} GiB" for name in ("needed", "available"))
        print_text(
            f"does not fit into memory: {', '.join(shortage['arms'])}. A run needs {needed} for parameters, gradients "
            f"and the optimizer's moments, but {shortage['where']} has only {available}. `taetpu run` rejects the "
            "study.",
            hanging=2,
        )
    if planned["packs"] and not planned["memory"]:
        print_text(f"time: {_time(planned['seconds'])}", hanging=2)


def _time(seconds: float | None) -> str:
    """Return a description of the predicted time of the train steps."""
    if seconds is None:
        return "no estimate, because this machine has not trained such packs yet. `taetpu run` shows the time left."
    return f"about {format_seconds(seconds)} for the train steps, from earlier packs of this kind on this machine"


def _notes(planned: dict[str, Any]) -> Iterator[str]:
    """Yield the notes to print below the table of arms."""
    from taetpu.report import evaluation_text
    from taetpu.report.start_text import describe_starts
    from taetpu.stats import formatting

    if endless := [arm["name"] for arm in planned["arms"] if arm["endless_loops"]]:
        yield f"{', '.join(endless)}: the length of a loop is known only at run time, so FLOPs include one iteration"
    other = [arm["name"] for arm in planned["arms"] if not arm["contract"]["same_data"]]
    if other:
        yield f"{', '.join(other)}: a seed reads {OTHER_DATA}"
    if windows := planned["windows"]:
        traced, static = (
            f"{windows[name]['flops_per_token']:,} FLOPs/token in {plural(windows[name]['programs'], 'program')}"
            for name in ("traced", "static")
        )
        yield (
            f"window masks are {windows['chosen']} (train.compute.windows): for {windows['arm']}, traced widths need "
            f"{traced}, because all scores are computed and all widths share a program; static widths need {static}, "
            "where a kernel (splash or cuDNN) skips what the window hides"
        )
    for name, compared in planned["contrasts"].items():
        yield f"contrast {name}: {compared}"
    if goal := planned["goal"]:
        yield f"goal: {goal['question']}"
        if costs := goal["cost"]:
            listed = formatting.list_names([f"{name} {formatting.amount(cost)}" for name, cost in costs.items()])
            yield f"candidates by {goal['minimise']}: {listed}"
        if goal["untrained"]:
            yield f"the search left {plural(goal['untrained'], 'candidate')} untrained"
    yield from _rungs(planned["ladder"], planned["worth"])
    for name, table in planned["post_hoc"].items():
        yield f"post-hoc ablation {name}: {_tables(table)}"
    yield from describe_starts({arm["name"]: arm["start"] for arm in planned["arms"]})
    yield from _inits(planned["arms"])
    yield from evaluation_text.describe_evaluation_text({arm["name"]: arm["data"] for arm in planned["arms"]})
    if tuned := planned["tuning"]:
        done = f" ({tuned['done']} {'is' if tuned['done'] == 1 else 'are'} done)" if tuned["done"] else ""
        trials = plural(tuned["trials"], "run")
        where = f"the mean {tuned['metric']} over {plural(len(tuned['seeds']), 'separate seed')}"
        yield f"tuning: {trials}{done}; {where} decides; then {tuned['tuned']} with the best setting of each arm"
    if planned["at_run"]:
        yield f"matched by time when the study runs: {', '.join(planned['at_run'])}"
    yield from _computed(planned["packs"])
    if resolved := describe_resolution(planned["resolution"]):
        yield resolved


def _rungs(sizes: Mapping[str, Mapping[str, Any]], worth: str | None) -> Iterator[str]:
    """Yield the sizes of the rungs of a ladder, and whether their baselines can have a scaling law."""
    from taetpu.stats.formatting import amount

    listed = [
        f"{rung} has {amount(size['params'])} parameters, {plural(size['steps'], 'step')}, {amount(size['tokens'])} "
        f"tokens ({size['tokens'] / size['params']:.3g} per parameter) and {amount(size['flops'])} FLOPs"
        for rung, size in sizes.items()
    ]
    if listed:
        yield f"ladder: {'; '.join(listed)}"
    if worth:
        flops = [size["flops"] for size in sizes.values()]
        if len({*flops}) < len(flops):
            yield "worth in compute: no multipliers, because two rungs have the same training FLOPs"
        else:
            yield (
                f"worth in compute: multipliers from a law of the baseline over {len(flops)} rungs, "
                f"{amount(min(flops))} to {amount(max(flops))} FLOPs"
            )


def _inits(arms: list[dict[str, Any]]) -> Iterator[str]:
    """Yield which arms have an init whose weights are far from 1 / sqrt(fan-in)."""
    names: dict[str, list[str]] = {}
    for arm in arms:
        if init := arm["init"]:
            names.setdefault(f"{init['kind']} at dim {init['dim']} {init['ratio']:.2g}", []).append(arm["name"])
    if names:
        listed = ", ".join(f"{init} ({', '.join(drawn)})" for init, drawn in names.items())
        yield (
            f"std of initial weights, times sqrt(fan-in): {listed}. Far from 1, an init can decide which changes help; "
            "with `model.init: scaled-fan-in`, it is 1 at every width"
        )


def _tables(table: dict[str, Any]) -> str:
    """Return a description of the tables of a post-hoc ablation."""
    counts = [number for number in table["parts"].values() if number]
    parts = plural(max(counts), "part") if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,} parts"
    lacking = [name for name, number in table["parts"].items() if not number]
    text = f"after training, {parts} of each of {plural(table['runs'], 'model')} will be removed one at a time"
    text += f" ({table['done']} {'is' if table['done'] == 1 else 'are'} done)" if table["done"] else ""
    return text + (f"; {', '.join(lacking)}: no such parts" if lacking else "")


def _computed(packs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a note for each choice of compute options (attention kernel, remat, feed ...) and its arms."""
    arms = dict[str, dict[str, None]]()
    for pack in packs:
        options = ("attention", "remat", "loss_chunk", "feed", "logits", "pad_vocab", "cast")
        names = [name for name in options if name in pack]
        chosen = ", ".join(f"{name.replace('_', ' ')} {pack[name]}" for name in names)
        for line in ([f"computed with {chosen}"] if chosen else []) + pack["routed"]:
            arms.setdefault(line, {}).update(dict.fromkeys(pack["arms"]))
    for line, names in arms.items():
        yield f"{', '.join(names)}: {line}"


def _layout_notes(packs: list[dict[str, Any]], at_once: int) -> Iterator[str]:
    """Yield how the layouts of packs were chosen, how many train at once, and why packs are wider than their runs."""
    from taetpu.train.beside import packs_per_device

    if any(pack["chosen"] == RULE for pack in packs):
        yield "Width and devices follow a rule of thumb; --pack N sets the maximum width."
    if at_once > 1:
        shared = packs_per_device()
        where = "each on separate devices" if shared == 1 else f"up to {shared} on each device"
        yield f"{at_once} packs train side by side, {where}."
    if filled := sorted({(pack["width"] - pack["padding"], pack["width"]) for pack in packs if pack["padding"] > 0}):
        widths = ", ".join(f"{plural(runs, 'run')} in width {width}" for runs, width in filled)
        yield f"The width is a multiple of the number of devices, so copies of a run fill packs: {widths}."


def _pack_row(packs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table row for packs that share a program."""
    first = packs[0]
    return {
        "packs": len(packs),
        "runs": sum(len(pack["runs"]) for pack in packs),
        "width": first["width"],
        "devices": first["devices"],
        "each run over": f"{first['data']} x {first['model']}" if "data" in first else None,
        "unroll": first["unroll"] if first["unroll"] > 1 else None,
        "chosen": None if first["chosen"] == RULE else first["chosen"],
        "arms": ", ".join(dict.fromkeys(arm for pack in packs for arm in pack["arms"])),
    }


# --- plan --diff -----------------------------------------------------------------------------------------------------


def _print_changes(changes: dict[str, Any]) -> None:
    """Print the result of `study.preview.diff_arm`."""
    from taetpu.spec.document import format_brief

    typer.echo(f"{changes['study']}: {changes['arm']} compared with the baseline\n")
    if changes["config"]:
        print_table(
            [
                {"config": path, "baseline": format_brief(old), "arm": format_brief(new)}
                for path, (old, new) in changes["config"].items()
            ]
        )
    else:
        typer.echo("no setting differs")
    typer.echo("")
    rows = [
        row
        for what in ("added", "removed", "reshaped", "redrawn")
        for row in ({"parameters": what, "": name, "shape": shape} for name, shape in _by_shape(changes[what]))
    ]
    if rows:
        print_table(rows)
        typer.echo("")
    print_table(
        [
            {"": "parameters", **_before_and_after(changes["parameters"])},
            {"": "FLOPs/token", **_before_and_after(changes["flops_per_token"])},
        ]
    )
    typer.echo("")
    if changes["operations"]:
        print_table(
            [{"operation": name, "baseline": old, "arm": new} for name, (old, new) in changes["operations"].items()]
        )
    else:
        same = changes["program"][0] == changes["program"][1]
        rest = (
            ("only its input values differ" if same else "only sizes or constants differ") if changes["config"] else ""
        )
        typer.echo(
            "; ".join(filter(None, ("the program is the same" if same else "the operations are the same", rest)))
        )
    typer.echo("")
    both = len(changes["equal"]) + len(changes["redrawn"])
    typer.echo(f"init:  {len(changes['equal'])} of {both} common parameters have bitwise identical initial values")
    typer.echo(f"data:  a seed reads {'the same windows in the same order' if changes['same_data'] else OTHER_DATA}")
    if changes["breaks"]:
        typer.echo(f"\nthe arm violates its contract: {changes['breaks']}")


def _by_shape(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of parameter names and shapes. Layers whose parameters have the same shape share a pair."""
    from taetpu.core.layer_names import fold_layers

    names_of: dict[str, list[str]] = {}
    for name, shape in parameters.items():
        both = shape if shape and isinstance(shape[0], list) else [shape]
        names_of.setdefault(" -> ".join((" x ".join(map(str, dims)) or "scalar") for dims in both), []).append(name)
    return sorted((name, shape) for shape, names in names_of.items() for name in fold_layers(names))


def _before_and_after(pair: list[int]) -> dict[str, Any]:
    old, new = pair
    return {"baseline": old, "arm": new, "ratio": f"{new / old:.3g}" if old else None}
