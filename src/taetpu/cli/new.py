"""`taetpu new`: a study from a template, or a study that leads from one preset to another."""

from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.options import Root
from taetpu.cli.output import explain_write_error
from taetpu.cli.schema import FILE, LINE, schema_text
from taetpu.cli.templates import DEFAULT, TEMPLATES, fill, next_commands
from taetpu.core.errors import UserError, check_known

ARGUMENT = ("the argument NAME",)
MOST_CROSSED = 5
"""Number of parts whose pairs half of the combinations, 16, tell apart."""


def new(
    name: Annotated[str, typer.Argument(help="The study's name. The study is written to NAME.yaml.")],
    template: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help=f"What the study shows: {', '.join(TEMPLATES)}. Default: {DEFAULT}.",
            autocompletion=lambda: [*TEMPLATES],
        ),
    ] = "",
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
    """Write a commented study that runs as it is. Existing files are never overwritten.

    `--template` chooses what it shows: models of text, files of token numbers, several tasks, a factorial, a ladder of
    scales, the smallest model that meets a goal, fine-tuning, classes of texts, a training script of your own, or a
    component of your own (plug-in). Beside it, taetpu.schema.json lets editors complete and check studies.

    With `--from` and `--to`, write a study with an arm for each difference between two known architectures. With
    `--design pairs --of FILE`, write a study of the interactions of those parts that the finished study of FILE found
    to matter: all combinations of the largest.

    Example: taetpu new my-study --template factorial
    """
    from taetpu.spec.study_file import check_name

    name = name.removesuffix(".yaml")
    check_name(name, "study", ARGUMENT)
    _check_options(start, end, design, of)
    if template:
        check_known(template, TEMPLATES, f"unknown template {template!r}", path=("--template",))
        if given := next((option for option, value in (("--design", design), ("--from", start)) if value), ""):
            remedy = f"Remove --template or {given}."
            raise UserError(f"{given} writes a study without a template", path=("--template",), remedy=remedy)
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
        texts = fill(template or DEFAULT, name)
    study, *others = texts
    schema = _write_all(texts)
    commands = f"taetpu plan {study}, then taetpu run {study}"
    if not (design or start):
        commands = next_commands(template or DEFAULT, name)
    typer.echo(f"wrote {' and '.join(map(str, [study, *others]))}\nnext: {commands}")
    typer.echo(f"{schema} is for editors: the first line of {study} names it")


def _write_all(texts: dict[Path, str]) -> Path:
    """Write files that do not exist, and the schema beside them, whose path is returned."""
    if taken := [target for target in texts if target.exists()]:
        raise UserError("file exists", file=taken[0], remedy="Use another name.")
    for target, text in texts.items():
        _write(target, LINE + text if target.suffix == ".yaml" else text, "x")
    schema = next(iter(texts)).parent / FILE
    _write(schema, schema_text(), "w")
    return schema


def _write(file: Path, text: str, mode: str) -> None:
    remedy = "Change to a folder with write permission."
    with explain_write_error(file, remedy), file.open(mode, encoding="utf-8") as out:
        out.write(text)


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
