"""`taetpu new`, `plan`, `run` and `demo`: from a study file to its results."""

from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.results import AsJson, Root, show
from taetpu.cli.tables import show_json, show_table

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's YAML file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the baseline, e.g. train.steps=200. May be repeated."),
]


def new(name: Annotated[str, typer.Argument(help="Name of the study; NAME.yaml is written.")]) -> None:
    """Write a commented study to start from. An existing file is never overwritten.

    Example: taetpu new my-idea
    """
    from importlib.resources import files

    from taetpu.core.errors import UserError
    from taetpu.spec.schema import check_name
    from taetpu.store.documents import to_yaml

    check_name(name, "study", ())
    target = Path(f"{name}.yaml")
    template = files("taetpu.study").joinpath("templates/new.yaml").read_text()
    header = to_yaml({"study": name}).decode().rstrip()  # a name such as 123 needs quotes
    try:
        with target.open("x") as out:
            out.write(template.format(name=name, header=header))
    except FileExistsError:
        raise UserError("this file exists already", file=target, remedy="choose another name") from None
    except OSError as error:
        remedy = "change to a folder that can be written to"
        raise UserError(f"cannot write: {error.strerror}", file=target, remedy=remedy) from None
    typer.echo(f"wrote {target}\nnext: taetpu plan {target}, then taetpu run {target}")


def plan(study: StudyFile, sets: Sets = None, root: Root = None, as_json: AsJson = False) -> None:
    """What would be trained: arms, changes, sizes, packs. Trains nothing.

    Example: taetpu plan study.yaml
    """
    from taetpu.core.runtime import prepare_jax

    prepare_jax()
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.study.preview import preview

    loaded = load_study(study, sets or [])
    found = preview(loaded, StudyFolder(open_store(default_root(root)), loaded.name))
    if as_json:
        show_json(found)
    else:
        _show_plan(found)


def _show_plan(found: dict[str, Any]) -> None:
    typer.echo(f"{found['study']}: {len(found['arms'])} arms x {len(found['seeds'])} seeds, {found['steps']} steps")
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
    typer.echo("")
    if not found["packs"]:
        typer.echo("nothing is left to train")
        return
    show_table(
        [
            {
                "pack": number,
                "runs": len(pack["runs"]),
                "width": pack["width"],
                "devices": pack["devices"],
                "arms": ", ".join(pack["arms"]),
            }
            for number, pack in enumerate(found["packs"], start=1)
        ]
    )
    typer.echo(f"\nto train: {found['tokens']:,} tokens, {found['flops']:.3g} FLOPs; time: measured at run")


def run(study: StudyFile, sets: Sets = None, root: Root = None, as_json: AsJson = False) -> None:
    """Train what is missing, then report. The same command goes on where it was stopped.

    Example: taetpu run study.yaml --set train.steps=200
    """
    train_study(study, sets or [], root, as_json)


def demo(root: Root = None) -> None:
    """The quick study: which parts of a small Transformer matter. A few minutes on two cores.

    Example: taetpu demo
    """
    from importlib.resources import as_file, files

    with as_file(files("taetpu.study").joinpath("templates/quickstart.yaml")) as file:
        train_study(file, [], root, False)


def train_study(file: Path, sets: list[str], root: str | None, as_json: bool) -> None:
    """Run a study file to its report, with progress, and print the verdicts."""
    from taetpu.core.runtime import prepare_jax

    prepare_jax()
    from rich.console import Console

    from taetpu.core.errors import FailedRuns
    from taetpu.study.progress import StudyProgress
    from taetpu.study.run import run as run_file

    with StudyProgress(Console(stderr=True)) as progress:
        outcome = run_file(file, sets, root=root, watcher=progress)
    if as_json:
        show_json(outcome.results)
    else:
        show(outcome.results, outcome.report)
    if outcome.failed:
        runs = sum(len(failure.runs) for failure in outcome.failed)
        raise FailedRuns(f"{runs} runs failed, for the reason above; the same command tries them again")
