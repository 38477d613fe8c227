"""`taetpu new`: a template of a study file and a plug-in."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated

import typer

from taetpu.core.errors import UserError

ARGUMENT = ("the argument NAME",)


def new(name: Annotated[str, typer.Argument(help="The study's name. The files are NAME.yaml and NAME.py.")]) -> None:
    """Write a commented template of a study and a plug-in. Existing files are never overwritten.

    Example: taetpu new my-idea
    """
    from importlib.resources import files

    from taetpu.spec.study_config import check_name
    from taetpu.store.documents import to_yaml

    name = name.removesuffix(".yaml")
    check_name(name, "study", ARGUMENT)
    if name in (*sys.stdlib_module_names, *packages_distributions(), "taetpu"):
        problem = f"{name}.py would shadow the Python module {name} in this folder"
        raise UserError(problem, path=ARGUMENT, remedy=f"Use another name, e.g. {name}-study.")
    study, plugin = Path(f"{name}.yaml"), Path(f"{name}.py")
    header = to_yaml({"study": name}).decode().rstrip()  # a name such as 123 needs quotes
    templates = files("taetpu.study").joinpath("templates")
    if taken := [target for target in (study, plugin) if target.exists()]:
        raise UserError("file exists", file=taken[0], remedy="Use another name.")
    for target in (study, plugin):
        text = templates.joinpath(f"new{target.suffix}").read_text()
        try:
            with target.open("x") as out:
                out.write(text.replace("HEADER", header).replace("NAME", name))
        except OSError as error:
            remedy = "Change to a folder with write permission."
            raise UserError(f"cannot write: {error.strerror}", file=target, remedy=remedy) from None
    typer.echo(f"wrote {study} and {plugin}\nnext: taetpu plan {study}, then taetpu run {study}")
