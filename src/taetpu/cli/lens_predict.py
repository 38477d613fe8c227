"""`taetpu lens predict`: the class, number, labels or masked tokens that a model predicts for a text."""

from dataclasses import dataclass
from typing import Annotated

import typer

from taetpu.cli.lens_options import ModelOptions, warn_of_unknown
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import print_json, print_table


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Options of `taetpu lens predict`."""

    text: Annotated[
        str, typer.Option("--text", metavar="TEXT", help="The text. Of a masked language model, it contains [MASK].")
    ]
    second: Annotated[
        str | None, typer.Option("--second", metavar="TEXT", help="The second text, for a model of two texts.")
    ] = None
    top: Annotated[int, integer("--top", least=1, help="Number of classes, labels or tokens to show.")] = 5


@takes_options
def predict(options: Options) -> None:
    """Show classes, numbers or masked tokens that are predicted.

    Classifiers show classes, or labels of words, with their probabilities; masked language models show the tokens in
    place of [MASK] or <mask>.

    Example: taetpu lens predict latest --text "a fine film"
    """
    from taetpu.lens.predict import predict as compute

    opened = options.open()
    for text in (options.text, options.second):
        if text is not None:
            warn_of_unknown(opened, text)
    made = compute(opened, options.text, options.second)
    print_json(made.to_dict(options.top)) if options.as_json else print_table(made.rows(options.top), floats=".4g")
