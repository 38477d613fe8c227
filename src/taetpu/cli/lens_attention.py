"""`taetpu lens attention` and `scores`: what the heads attend to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.lens_options import (
    Head,
    Layer,
    ModelOptions,
    Picture,
    TextOptions,
    check_picture,
    parse_ids,
    write_picture,
)
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(TextOptions):
    """Options of `taetpu lens attention`."""

    layer: Layer = None
    head: Head = None
    steps: Annotated[
        str | None,
        typer.Option(metavar="N,N,...|all", help="Show one head at stored steps of training."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write a picture (.png, .svg, .pdf, .html, .json) or arrays (.npz)."
        ),
    ] = None


@takes_options
def attention(options: AttentionOptions) -> None:
    """Show the attention weights of layers and heads.

    The table has means over the tokens of the text: the entropy of the weights in nats, and the weights of the token
    itself, of the token before, and of the first token.

    Example: taetpu lens attention latest --text "the fox and the fox" -o maps.png
    """
    from taetpu.lens.attention import attention_maps, head_progress

    check_picture(options.out, [".npz"])
    model = options.open()
    inputs: Any = options.read(model)
    if options.steps is None:
        (result,) = attention_maps(model, inputs, layer=options.layer, head=options.head)
    elif options.layer is None or options.head is None:
        remedy = "Add --layer and --head."
        raise UserError("--steps shows one head, but no head is chosen", path=("--steps",), remedy=remedy)
    else:
        steps = None if options.steps == "all" else parse_ids(options.steps, "--steps")
        result = head_progress(model, inputs, options.layer, options.head, steps)
    if options.as_json:
        print_json(result.to_dict())
    else:
        print_table(result.rows(), floats=".3f")
        print_text("entropy in nats; the others are mean attention weights")
    if options.out is not None and options.out.suffix == ".npz":
        result.save(options.out)
        log(f"wrote {options.out}")
    else:
        write_picture(result.chart, options.out)


@dataclass(frozen=True, kw_only=True)
class ScoresOptions(ModelOptions):
    """Options of `taetpu lens scores`."""

    length: Annotated[
        int | None, integer(least=2, help="The number of different tokens. Default: at most 50, as the model allows.")
    ] = None
    sequences: Annotated[int, integer(least=1, help="The number of sequences.")] = 10
    seed: Annotated[int, integer(least=0, help="The seed of the tokens.")] = 0
    out: Picture = None


@takes_options
def scores(options: ScoresOptions) -> None:
    """Find induction, previous-token and duplicate-token heads.

    The model reads random tokens that are repeated once. A score is the mean attention weight of the token after the
    earlier occurrence (induction), of the token before, or of the earlier occurrence (duplicate-token).

    Example: taetpu lens scores latest -o heads.png
    """
    from taetpu.lens.head_scores import KINDS, head_scores

    check_picture(options.out)
    scored = head_scores(options.open(), length=options.length, sequences=options.sequences, seed=options.seed)
    if options.as_json:
        print_json(scored.to_dict())
    else:
        print_table(scored.rows(), floats=".3f")
        uniform = ", ".join(f"{kind} {scored.uniform[kind]:.3f}" for kind in KINDS)
        print_text(f"{scored.sequences} sequences of {scored.length} random tokens, repeated once; "
                   f"scores of uniform attention: {uniform}")  # fmt: skip
    write_picture(scored.chart, options.out)
