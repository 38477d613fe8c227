"""`taetpu new`: a template of a study file and a plug-in, or a study that leads from one preset to another."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated

import typer

from taetpu.core.errors import UserError, check_known

ARGUMENT = ("the argument NAME",)


def new(
    name: Annotated[str, typer.Argument(help="The study's name. The files are NAME.yaml and NAME.py.")],
    start: Annotated[
        str, typer.Option("--from", metavar="PRESET", help="With --to: the known architecture to begin with.")
    ] = "",
    end: Annotated[
        str, typer.Option("--to", metavar="PRESET", help="The known architecture whose differences become arms.")
    ] = "",
    dim: Annotated[int, typer.Option(help="With --from: the width of both models.", min=8)] = 128,
    num_layers: Annotated[int, typer.Option(help="With --from: the number of layers of both models.", min=1)] = 4,
) -> None:
    """Write a commented template of a study and a plug-in. Existing files are never overwritten.

    Complete studies, such as factorials and ladders, are in the folder studies/ of the source repository.

    With `--from` and `--to`, write a study with one arm for each difference between two known architectures.

    Example: taetpu new my-study --from llama3 --to gemma3
    """
    from taetpu.spec.study_config import check_name

    name = name.removesuffix(".yaml")
    check_name(name, "study", ARGUMENT)
    if bool(start) != bool(end):
        missing = "--to" if start else "--from"
        raise UserError(f"{missing} is missing", path=(missing,), remedy="Use --from and --to together.")
    texts = _path_between(name, start, end, dim, num_layers) if start else _template(name)
    if taken := [target for target in texts if target.exists()]:
        raise UserError("file exists", file=taken[0], remedy="Use another name.")
    for target, text in texts.items():
        try:
            with target.open("x", encoding="utf-8") as out:
                out.write(text)
        except OSError as error:
            remedy = "Change to a folder with write permission."
            raise UserError(f"cannot write: {error.strerror}", file=target, remedy=remedy) from None
    study = next(iter(texts))
    typer.echo(f"wrote {' and '.join(map(str, texts))}\nnext: taetpu plan {study}, then taetpu run {study}")


def _template(name: str) -> dict[Path, str]:
    """Return the template of a study and a plug-in, by file."""
    from importlib.resources import files

    from taetpu.store.documents import to_yaml

    if name in (*sys.stdlib_module_names, *packages_distributions(), "taetpu"):
        problem = f"{name}.py would shadow the Python module {name} in this folder"
        raise UserError(problem, path=ARGUMENT, remedy=f"Use another name, e.g. {name}-study.")
    header = to_yaml({"study": name}).decode().rstrip()  # a name such as 123 needs quotes
    templates = files("taetpu.study").joinpath("templates")
    targets = Path(f"{name}.yaml"), Path(f"{name}.py")
    texts = {target: templates.joinpath(f"new{target.suffix}").read_text(encoding="utf-8") for target in targets}
    return {target: text.replace("HEADER", header).replace("NAME", name) for target, text in texts.items()}


def _path_between(name: str, start: str, end: str, dim: int, num_layers: int) -> dict[Path, str]:
    """Return the study that leads from one preset to another, by file."""
    from taetpu.spec.preset_study import write_study
    from taetpu.spec.presets import PRESETS

    for option, preset in (("--from", start), ("--to", end)):
        check_known(preset, PRESETS, f"unknown preset {preset!r}", path=(option,))
    return {Path(f"{name}.yaml"): write_study(name, start, end, dim, num_layers)}
