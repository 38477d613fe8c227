"""`taetpu new`: a template of a study file and a plug-in, or a study that leads from one preset to another."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.options import Root
from taetpu.core.errors import UserError, check_known

ARGUMENT = ("the argument NAME",)
MOST_CROSSED = 5
"""Number of parts whose pairs half of the combinations, 16, tell apart."""


def new(
    name: Annotated[str, typer.Argument(help="The study's name. The files are NAME.yaml and NAME.py.")],
    start: Annotated[
        str, typer.Option("--from", metavar="PRESET", help="With --to: the known architecture to begin with.")
    ] = "",
    end: Annotated[
        str, typer.Option("--to", metavar="PRESET", help="The known architecture whose differences become arms.")
    ] = "",
    dim: Annotated[int | None, typer.Option(help="With --from: the width of both models. Default: 128.", min=8)] = None,
    num_layers: Annotated[
        int | None, typer.Option(help="With --from: the number of layers of both models. Default: 4.", min=1)
    ] = None,
    design: Annotated[
        str,
        typer.Option(
            help="With --from: forward (each difference added to the first), backward (each removed from the second) "
            "or both; with --of: pairs."
        ),
    ] = "",
    of: Annotated[
        str, typer.Option("--of", metavar="FILE", help="With --design pairs: the study whose parts are crossed.")
    ] = "",
    top: Annotated[
        int | None,
        typer.Option(help="With --design pairs: the most parts that are crossed. Default: 3.", min=2, max=MOST_CROSSED),
    ] = None,
    root: Root = None,
) -> None:
    """Write a commented template of a study and a plug-in. Existing files are never overwritten.

    Complete studies, such as factorials and ladders, are in the folder studies/ of the source repository.

    With `--from` and `--to`, write a study with an arm for each difference between two known architectures. With
    `--design pairs --of FILE`, write a study of the interactions of those parts that the finished study of FILE found
    to matter: all combinations of the largest.

    Example: taetpu new my-study --from llama3 --to gemma3 --design both
    """
    from taetpu.spec.study_file import check_name

    name = name.removesuffix(".yaml")
    check_name(name, "study", ARGUMENT)
    _check_options(start, end, design, of)
    for option, value, needed, given in (
        ("--dim", dim, "--from", start), ("--num-layers", num_layers, "--from", start), ("--top", top, "--of", of),
    ):  # fmt: skip
        if value is not None and not given:
            remedy = f"Add {needed}, or remove {option}."
            raise UserError(f"{option} {value} has no effect without {needed}", path=(option,), remedy=remedy)
    if design == "pairs":
        texts = _pairs(name, Path(of), top or 3, root)
    elif start:
        texts = _path_between(name, start, end, dim or 128, num_layers or 4, design or "forward")
    else:
        texts = _template(name)
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


def _check_options(start: str, end: str, design: str, of: str) -> None:
    """Raise `UserError` if options that belong together are not given together."""
    from taetpu.spec.preset_study import DESIGNS

    if design:
        check_known(design, DESIGNS, f"unknown design {design!r}", path=("--design",))
    crossed = "Run a study of --design forward or both, then write one of its pairs with --design pairs --of FILE."
    if design == "pairs" and not of:
        problem = "the pairs of all differences are too many to train, and no results say which matter"
        raise UserError(problem, path=("--of",), remedy=crossed)
    if of and (design != "pairs" or start or end):
        raise UserError("--of names a finished study, which has its own baseline and parts", path=("--of",),
                        remedy="Use it with --design pairs, without --from and --to.")  # fmt: skip
    for missing, given in (("--to", end), ("--from", start)):
        if (start or end or (design and not of)) and not given:
            raise UserError(f"{missing} is missing", path=(missing,), remedy="Use --from and --to together.")


def _path_between(name: str, start: str, end: str, dim: int, num_layers: int, design: str) -> dict[Path, str]:
    """Return the study that leads from one preset to another, by file."""
    from taetpu.spec.preset_study import write_study
    from taetpu.spec.presets import PRESETS

    for option, preset in (("--from", start), ("--to", end)):
        check_known(preset, PRESETS, f"unknown preset {preset!r}", path=(option,))
    return {Path(f"{name}.yaml"): write_study(name, start, end, dim, num_layers, design)}


def _pairs(name: str, of: Path, top: int, root: str | None) -> dict[Path, str]:
    """Return the study of the interactions of the parts that matter in a finished study, by file."""
    from taetpu.report.opened_study import open_study
    from taetpu.spec.loading import load_study
    from taetpu.spec.preset_study import parts_of, write_pairs
    from taetpu.stats.designs import parts_that_matter

    study = load_study(of)
    parts = parts_of(study)
    results = open_study(study.name, root).results
    chosen = parts_that_matter(results, top)
    seeds = [max(results["seeds"]) + 1 + i for i in range(len(results["seeds"]))]
    return {of.parent / f"{name}.yaml": write_pairs(name, study, {part: parts[part] for part in chosen}, seeds)}
