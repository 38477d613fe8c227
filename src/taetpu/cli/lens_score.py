"""`taetpu lens score`: scores on items of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.lens_options import ModelOptions
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from taetpu.lens.score import Scores

SHOWN = 8
"""Maximum number of choices in a table of items."""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Options of `taetpu lens score`."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file with an item in each line.")]
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="The kind of score. Default: that of the file's format.")
    ] = None
    by: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of the rows that groups the items.")] = None
    max_tokens: Annotated[
        int | None, integer(least=1, help="Tokens to generate, for the kind generation. Default: 32.")
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="A text that ends generated texts. Default: a line end."),
    ] = None
    per_item: Annotated[bool, typer.Option("--per-item", help="Show the scores of each item.")] = False


@takes_options
def score(options: Options) -> None:
    """Score a model on the items of a file.

    The rows of FILE have the fields of HellaSwag, ARC, BLiMP, LAMBADA or WinoGrande, or prompt and answer.

    Example: taetpu lens score latest blimp.jsonl
    """
    from taetpu.lens.score import score as measure

    given = {"by": options.by, "max_tokens": options.max_tokens, "stop": options.stop}
    settings = {name: value for name, value in given.items() if value is not None}
    measured = measure(options.open(), options.file, options.kind, **settings)
    print_json(measured.to_dict()) if options.as_json else _print_scores(measured, options.per_item)


def _print_scores(measured: "Scores", per_item: bool) -> None:
    print_table(measured.rows(), floats=".4g")
    chance = "" if measured.chance is None else f"; a guess scores {measured.chance:.4g}"
    print_text(f"{measured.kind}, with standard errors over items{chance}")
    if groups := measured.group_rows():
        typer.echo()
        print_table(groups, floats=".4g")
    if per_item:
        typer.echo()
        print_table([{**row, **_shown(row)} for row in measured.item_rows()], floats=".4g")


def _shown(row: dict[str, object]) -> dict[str, str]:
    """Return the log-probabilities of an item's choices as text."""
    if not isinstance(values := row.get("logp"), list):
        return {}
    return {"logp": "  ".join(f"{value:.2f}" for value in values[:SHOWN]) + (" ..." if len(values) > SHOWN else "")}
