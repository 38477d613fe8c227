"""`taetpu lens perplexity`: losses of texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.lens_options import ModelOptions, Picture, check_picture, parse_ids, warn_of_unknown, write_picture
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import print_json, print_table, print_text
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from taetpu.lens.opened import OpenedModel
    from taetpu.lens.perplexity import Perplexity

SHOWN = 20
"""Maximum number of texts in a table."""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Options of `taetpu lens perplexity`."""

    files: Annotated[list[Path] | None, typer.Argument(metavar="TEXT_FILE...", help="Text files.")] = None
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="A text. May be repeated.")] = None
    ids: Annotated[
        list[str] | None, typer.Option("--ids", metavar='"N N ..."', help="Token numbers. May be repeated.")
    ] = None
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="An evaluation set of the run's task, such as val or test.")
    ] = None
    window: Annotated[
        int | None, integer(least=1, help="Tokens that are read at once. Default: the model's sequence length.")
    ] = None
    stride: Annotated[
        int | None,
        integer(least=1, help="Tokens between the starts of windows. Less than --window: more context. Default: same."),
    ] = None
    per_token: Annotated[bool, typer.Option("--per-token", help="Show the loss of each token.")] = False
    out: Picture = None


@takes_options
def perplexity(options: Options) -> None:
    """Measure the perplexity of texts.

    The first token of a text is not predicted. Long texts are read in windows, and each target is scored once.

    Example: taetpu lens perplexity latest story.txt --per-token -o losses.png
    """
    check_picture(options.out)
    measured = _measure(options.open(), options)
    print_json(measured.to_dict()) if options.as_json else _print_result(measured, options.per_token)
    write_picture(measured.chart, options.out)


def _measure(model: "OpenedModel", options: Options) -> "Perplexity":
    from taetpu.lens.perplexity import perplexity as measure
    from taetpu.lens.perplexity import split_perplexity
    from taetpu.lens.token_texts import read_text

    if options.split is not None:
        if options.files or options.text or options.ids or options.window or options.stride:
            problem = "--split cannot be combined with texts, --window or --stride"
            raise UserError(problem, remedy="Remove the other options.")
        return split_perplexity(model, options.split)
    named: list[tuple[str, Any]] = [(str(file), read_text(file)) for file in options.files or ()]
    named += [(f"text {number}", text) for number, text in enumerate(options.text or ())]
    for _, text in named:
        warn_of_unknown(model, text)
    named += [(f"ids {number}", parse_ids(text)) for number, text in enumerate(options.ids or ())]
    if not named:
        remedy = 'Use a file, --text "...", --ids "1 2 3" or --split val.'
        raise UserError("a text is missing", path=("TEXT_FILE",), remedy=remedy)
    names, inputs = zip(*named, strict=True)
    return measure(model, list(inputs), names=names, window=options.window, stride=options.stride)


def _print_result(measured: "Perplexity", per_token: bool) -> None:
    from taetpu.lens.token_texts import visible

    rows = measured.rows()
    shown = rows if len(rows) <= SHOWN else rows[-1:]
    print_table(shown, floats=".4g")
    where = f", windows of {measured.window:,} tokens"
    where += "" if measured.stride == measured.window else f" that start every {measured.stride:,} tokens"
    where = where if measured.has_windows else ""
    bits = "" if measured.bits_per_byte is None else f"; {measured.bits_per_byte:.3f} bits per byte"
    print_text(f"losses in nats per token{where}{bits}")
    for text in measured.texts if per_token else ():
        typer.echo()
        print_table([{**row, "token": visible(row["token"]), "loss": f"{row['loss']:.4f}"}
                     for row in text.token_rows()])  # fmt: skip
