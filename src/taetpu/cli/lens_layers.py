"""`taetpu lens logit-lens`, `attribution` and `norms`: how predictions are formed, layer by layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.lens_options import Picture, Position, TextOptions, check_picture, parse_token, write_picture
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import log, print_json, print_table, print_text

if TYPE_CHECKING:
    from taetpu.lens.opened import OpenedModel

MAX_PLACES = 5
"""The maximum number of token positions in the warning of norms that are not finite."""
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TOKEN",
        help="The text of one token, or #N for token N (or N, if this text is not one token). Default: the next token; "
        "if tokens see later ones, the token at the position.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LogitLensOptions(TextOptions):
    """Options of `taetpu lens logit-lens`."""

    position: Position = -1
    target: Target = None
    top: Annotated[int, integer(least=1, help="The number of most likely tokens.")] = 3
    out: Picture = None


@takes_options
def logit_lens(options: LogitLensOptions) -> None:
    """Show what each layer would predict.

    The residual stream after each layer passes the final norm and the output embedding. The table shows the most likely
    tokens after one position, and the rank and probability of the target. The picture shows all positions.

    Example: taetpu lens logit-lens latest --text "the quick brown" --target " fox" -o lens.png
    """
    from taetpu.lens.logit_lens import logit_lens as look

    check_picture(options.out)
    model = options.open()
    inputs: Any = options.read(model)
    _check_position(model, inputs, options.position)
    (predictions,) = look(model, inputs, top=options.top, target=parse_token(model, options.target, "--target"))
    rows = predictions.rows(options.position)
    if options.as_json:
        print_json(predictions.to_dict())
    else:
        _print_position(predictions, options.position)
        print_table(rows)
    write_picture(predictions.chart, options.out)


def _check_position(model: "OpenedModel", inputs: Any, position: int) -> None:
    """Raise `UserError` if a text has no such position."""
    from taetpu.lens.activations import check_position, sequences

    for row in sequences(model, inputs):
        check_position(position, len(row))


def _print_position(view: Any, position: int) -> None:
    from taetpu.lens.token_texts import visible

    at = position % len(view.tokens)
    place = "after" if getattr(view, "predicts_next", True) else "at"
    print_text(f"{place} {visible(view.texts[at])!r}, position {at} of {len(view.tokens)} tokens")


@dataclass(frozen=True, kw_only=True)
class AttributionOptions(TextOptions):
    """Options of `taetpu lens attribution`."""

    position: Position = -1
    target: Target = None
    minus: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Divide the difference to the logit of this token, named as in --target."),
    ] = None
    heads: Annotated[bool, typer.Option("--heads/--no-heads", help="Show the heads of each mixer.")] = True
    out: Picture = None


@takes_options
def attribution(options: AttributionOptions) -> None:
    """Divide a logit into the contributions of the model's parts.

    With frozen scales of the norms, the contributions sum to the logit (before the soft cap, if there is one).

    Example: taetpu lens attribution latest --text "the quick brown" --target " fox" --minus " dog"
    """
    from taetpu.lens.attribution import attribution as divide
    from taetpu.lens.token_texts import visible

    check_picture(options.out)
    model = options.open()
    inputs: Any = options.read(model)
    _check_position(model, inputs, options.position)
    target, minus = parse_token(model, options.target, "--target"), parse_token(model, options.minus, "--minus")
    (contributions,) = divide(model, inputs, target=target, minus=minus)
    rows = contributions.rows(options.position, heads=options.heads)
    if options.as_json:
        print_json(contributions.to_dict())
    else:
        at = options.position % len(contributions.tokens)
        less = "" if contributions.minus_text is None else f" minus that of {visible(contributions.minus_text)!r}"
        _print_position(contributions, options.position)
        print_text(f"logit of {visible(contributions.target_texts[at])!r}{less}{_before(model)}")
        print_table([{**row, "contribution": f"{row['contribution']:+.4f}"} for row in rows])
    write_picture(lambda: contributions.chart(options.position), options.out)


def _before(model: "OpenedModel") -> str:
    """Return which change of the logits follows the contributions; empty for a model without one."""
    kind = model.config.logits.kind
    return {"none": "", "softcap": ", before the soft cap"}.get(kind, f", before the component logits {kind}")


@dataclass(frozen=True, kw_only=True)
class NormsOptions(TextOptions):
    """Options of `taetpu lens norms`."""

    out: Picture = None


@takes_options
def norms(options: NormsOptions) -> None:
    """Show the norms of the residual stream.

    The table has statistics over the tokens of the text for each layer. The picture shows all positions.

    Example: taetpu lens norms latest story.txt -o norms.png
    """
    from taetpu.lens.norms import residual_norms

    check_picture(options.out)
    model = options.open()
    inputs: Any = options.read(model)
    (table,) = residual_norms(model, inputs)
    if options.as_json:
        print_json(table.to_dict())
    else:
        print_table(table.rows(), floats=".3f")
    if table.not_finite is not None:
        places = table.not_finite_positions
        shown = ", ".join(f"{place} ({table.texts[place]!r})" for place in places[:MAX_PLACES])
        more = f" and {len(places) - MAX_PLACES:,} more" if len(places) > MAX_PLACES else ""
        log(f"warning: norms of {table.model} are not finite, first in the row {table.not_finite}, "
            f"at the token position{'s' * (len(places) > 1)} {shown}{more}")  # fmt: skip
    write_picture(table.chart, options.out)
