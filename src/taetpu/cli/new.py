"""`taetpu new`: write a commented study and a plug-in to start from."""

from pathlib import Path
from typing import Annotated

import typer

ARGUMENT = ("the argument NAME",)


def new(name: Annotated[str, typer.Argument(help="Name of the study; NAME.yaml and NAME.py are written.")]) -> None:
    """Write a commented study and a plug-in to start from. An existing file is never overwritten.

    Example: taetpu new my-idea
    """
    from importlib.resources import files

    from taetpu.core.errors import UserError
    from taetpu.core.modules import find_shadowed, is_run_by_tools
    from taetpu.spec.schema import check_name
    from taetpu.store.documents import to_yaml

    name = name.removesuffix(".yaml")
    check_name(name, "study", ARGUMENT)
    if module := find_shadowed(name):
        problem = f"{name}.py would hide the Python module {module} from programs started in this folder"
        raise UserError(problem, path=ARGUMENT, remedy=f"use another name, e.g. {name}-study")
    if is_run_by_tools(name):
        problem = f"{name}.py would be taken for a file of tests or packaging by pytest, pip or nox"
        raise UserError(problem, path=ARGUMENT, remedy=f"use another name, e.g. study-{name.replace('_', '-')}")
    study, plugin = Path(f"{name}.yaml"), Path(f"{name}.py")
    header = to_yaml({"study": name}).decode().rstrip()  # a name such as 123 needs quotes
    templates = files("taetpu.study").joinpath("templates")
    if taken := [target for target in (study, plugin) if target.exists()]:
        raise UserError("this file exists already", file=taken[0], remedy="choose another name")
    for target in (study, plugin):
        text = templates.joinpath(f"new{target.suffix}").read_text()
        try:
            with target.open("x") as out:
                out.write(text.replace("HEADER", header).replace("NAME", name))
        except OSError as error:
            remedy = "change to a folder that can be written to"
            raise UserError(f"cannot write: {error.strerror}", file=target, remedy=remedy) from None
    typer.echo(f"wrote {study} and {plugin}\nnext: taetpu plan {study}, then taetpu run {study}")
