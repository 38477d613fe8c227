"""`taetpu plan`: what a study would train, at what cost, and the proof that each arm changes only what it declares."""

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from taetpu.cli.diff import OTHER_DATA, show_changes
from taetpu.cli.options import AsJson, Pack, Root, Sets, StudyFile, number
from taetpu.cli.output import count, say, show_json, show_table
from taetpu.cli.preflight import (
    between,
    compiled_for,
    most_of,
    refuse_what_does_not_fit,
    short,
    show_slices,
    wanted_slices,
)
from taetpu.cli.xla_options import LibtpuArgs, XlaFlags

Diff = Annotated[
    str | None, typer.Option(metavar="ARM", help="Show instead what one arm changes: config, parameters, program.")
]


def plan(
    study: StudyFile,
    sets: Sets = None,
    diff: Diff = None,
    root: Root = None,
    pack: Pack = "auto",
    noise: Annotated[
        float | None, number(help="Standard deviation of a run, to say which effects the study can resolve.")
    ] = None,
    effect: Annotated[float | None, number(help="A true effect: how many seeds would find it?")] = None,
    tpu: Annotated[
        str | None,
        typer.Option(
            help="Compile every program for this TPU (v5e-8, v5e:2x4), without one, and say whether it fits, how fast "
            "it would be and what it would cost; `all` compares the generations."
        ),
    ] = None,
    xla_flags: XlaFlags = "",
    libtpu_args: LibtpuArgs = "",
    as_json: AsJson = False,
) -> None:
    """What would be trained: arms, changes, sizes, packs. Proves that each arm changes what it says; trains nothing.

    Example: taetpu plan study.yaml --tpu v5e-8
    """
    from taetpu.core.errors import UserError
    from taetpu.core.flags import set_flags
    from taetpu.core.runtime import prepare_jax

    slices = wanted_slices(tpu)
    if slices and diff is not None:
        problem = f"--diff {diff} shows what an arm changes, which is the same on every machine"
        raise UserError(problem, path=("--tpu",), remedy="one of the two: leave out --tpu, or --diff")
    set_flags(xla_flags, libtpu_args, compiles=bool(slices))
    prepare_jax(cpu=bool(slices))
    from rich.console import Console

    from taetpu.spec.loading import load_study
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.study.changes import changes
    from taetpu.study.preview import prepare_study, preview
    from taetpu.study.spinner import Waiting
    from taetpu.train.layout import parse_packing

    packing = parse_packing(pack)
    loaded = load_study(study, sets or [])
    if diff is not None:
        found, printed = changes(loaded, diff), show_changes
    else:
        folder = StudyFolder(open_store(default_root(root)), loaded.name)
        with Waiting(Console(stderr=True), "checking arms") as told:
            ready = prepare_study(loaded, folder, told, most_of(slices))
            here = None if slices else packing
            found, printed = preview(ready, folder, here, programs=as_json, noise=noise, effect=effect), _show_plan
        if slices:
            found["tpu"] = compiled_for(ready, packing, slices)
    show_json(found) if as_json else printed(found)
    refuse_what_does_not_fit(found.get("tpu", []))


def _show_plan(found: dict[str, Any]) -> None:
    _show_training(found)
    if "tpu" in found:
        typer.echo("")
        show_slices(found["tpu"])


def _show_training(found: dict[str, Any]) -> None:
    arms, seeds = count(len(found["arms"]), "arm"), count(len(found["seeds"]), "seed")
    typer.echo(f"{found['study']}: {arms} x {seeds}, {count(found['steps'], 'step')}")
    typer.echo("task: " + ", ".join(f"{key} {value}" for key, value in found["task"].items()) + "\n")
    show_table(
        [
            {
                "arm": arm["name"],
                "changes": arm["change"],
                "params": arm["params"],
                "FLOPs/token": arm["flops_per_token"],
                "done": f"{arm['done']}/{arm['runs']}",
            }
            for arm in found["arms"]
        ]
    )
    for told in _told(found):
        typer.echo("")
        say(told)
    typer.echo("")
    if not found["tokens"]:
        typer.echo("nothing is left to train")
        return
    if found["packs"]:
        show_table([_program(list(packs)) for _, packs in groupby(found["packs"], key=lambda pack: pack["program"])])
        typer.echo("")
    typer.echo(f"to train: {count(found['tokens'], 'token')}, {found['flops']:.3g} FLOPs")
    for one in found["memory"]:
        needed, there = (f"{one[name] / 2**30:,.1f} GiB" for name in ("needed", "available"))
        say(
            f"does not fit into memory: {', '.join(one['arms'])}: training a run keeps {needed} (parameters, gradients "
            f"and the optimizer's moments), and {one['where']} has {there}; `taetpu run` refuses to train it",
            hanging=2,
        )
    if found["packs"] and not found["memory"]:
        say(f"time: {_time(found['time'])}", hanging=2)
        if sampled := _sampled(found["evaluation"]):
            say(f"evaluation: {sampled}", hanging=2)


def _time(found: dict[str, Any] | None) -> str:
    """How long training takes, by what it is spent on."""
    if found is None:
        return "known after the first steps; nothing was measured on this device before"
    spent = {"train steps": "steps", "evaluation": "evaluating", "compiling": "compiling"}
    shares = ", ".join(f"{name} {between(found[key], short)}" for name, key in spent.items())
    return f"{between(found['total'], short)} ({shares}), from {found['source']}"


def _sampled(found: dict[str, Any]) -> str:
    """What is evaluated during training."""
    if not found["total"]:
        return ""
    if found["windows"] >= found["total"]:
        return f"all {count(found['total'], 'window')} of the validation split each time"
    return f"{found['windows']} of {found['total']} validation windows during training, all at the end"


def _told(found: dict[str, Any]) -> Iterator[str]:
    """What a plan says in sentences."""
    from taetpu.report import held_out

    if endless := [arm["name"] for arm in found["arms"] if arm["endless_loops"]]:
        yield f"{', '.join(endless)}: a loop has a length that is not known before it runs; its FLOPs are of one round"
    other = [arm["name"] for arm in found["arms"] if not arm["contract"]["same_data"]]
    if other:
        yield f"{', '.join(other)}: a seed reads {OTHER_DATA}"
    yield from held_out.describe_held_out({arm["name"]: arm["data"] for arm in found["arms"]})
    if tuned := found["tuning"]:
        done = f" ({tuned['done']} {'is' if tuned['done'] == 1 else 'are'} done)" if tuned["done"] else ""
        trials = count(tuned["trials"], "run")
        yield f"tuning: {trials}{done}, and then {tuned['tuned']} at what each arm found best"
    if found["at_run"]:
        yield f"matched by time: measured at run, for {', '.join(found['at_run'])}"
    yield from _computed(found["packs"])
    if resolved := _resolution(found["resolution"]):
        yield resolved


def _computed(packs: list[dict[str, Any]]) -> Iterator[str]:
    """How numbers are computed, where that is not the plain way, and what is not computed so: each said once."""
    arms = dict[str, dict[str, None]]()
    for pack in packs:
        names = [name for name in ("attention", "remat", "loss_chunk") if name in pack]
        chosen = ", ".join(f"{name.replace('_', ' ')} {pack[name]}" for name in names)
        for line in ([f"computed with {chosen}"] if chosen else []) + pack["routed"]:
            arms.setdefault(line, {}).update(dict.fromkeys(pack["arms"]))
    for line, names in arms.items():
        yield f"{', '.join(names)}: {line}"


def _resolution(found: dict[str, Any]) -> str:
    """What the study can tell, in a sentence or two."""
    if found["resolves_sd"] is None:
        return ""
    chance = f"{found['power']:.0%} of the time"
    if found["noise"] is None:
        return (
            f"finds a true effect of {found['resolves_sd']:.2g} standard deviations of a run {chance}; "
            "--noise SD says how much that is"
        )
    text = f"noise {found['noise']:.2g} ({found['noise_from']}): "
    if found["most"] is not None and found["resolves"] > found["most"]:
        text += f"finds no effect {chance}, since none can be larger than {found['most']:g}"
    else:
        text += f"finds a true effect of {found['resolves']:.2g} {chance}"
    if found["effect"] is None:
        return text
    if found["seeds"] is None:
        return f"{text}; one of {found['effect']:g} would take more seeds than are worth counting"
    return f"{text}; one of {found['effect']:g} takes {count(found['seeds'], 'seed')}, {found['flops']:.3g} FLOPs"


def _program(packs: list[dict[str, Any]]) -> dict[str, Any]:
    """A row for the packs that share a program."""
    first = packs[0]
    return {
        "packs": len(packs),
        "runs": sum(len(pack["runs"]) for pack in packs),
        "width": first["width"],
        "devices": first["devices"],
        "each run over": f"{first['data']} x {first['model']}" if "data" in first else None,
        "unroll": first["unroll"] if first["unroll"] > 1 else None,
        "chosen": first["chosen"],
        "arms": ", ".join(dict.fromkeys(arm for pack in packs for arm in pack["arms"])),
    }
