"""`taetpu lens patch`: which activations of a clean text restore the answer to a corrupted text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.lens_options import Layer, ModelOptions, Picture, check_picture, write_picture
from taetpu.cli.options import integer, takes_options
from taetpu.cli.output import log, plural, print_json, print_table, print_text
from taetpu.core.errors import UserError
from taetpu.core.progress import show_progress

if TYPE_CHECKING:
    from taetpu.lens.ablation.patching import Patches
    from taetpu.lens.ablation.path_patching import Receiver

RECEIVER = re.compile(r"(?P<site>[\w.]+)@(?P<layer>\d+)(\.(?P<head>\d+))?")


@dataclass(frozen=True, kw_only=True)
class PatchOptions(ModelOptions):
    """Options of `taetpu lens patch`."""

    pairs: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="A .jsonl file with clean and corrupted texts and answers.")
    ]
    what: Annotated[str, typer.Option(help="What is patched: heads, mixers, ffns, neurons, ..., or a site.")] = "heads"
    positions: Annotated[bool, typer.Option("--positions", help="Patch each position of the site alone.")] = False
    layer: Layer = None
    receiver: Annotated[
        str | None,
        typer.Option(metavar="SITE@LAYER[.HEAD]", help="Patch only what reaches this site directly, e.g. mixer.k@1.0."),
    ] = None
    attribution: Annotated[
        bool,
        typer.Option("--attribution", help="Also estimate scores from one gradient, with the correlation."),
    ] = False
    top: Annotated[int, integer(least=1, help="The number of components in the table.")] = 20
    out: Picture = None


@takes_options
def patch(options: PatchOptions) -> None:
    """Find the activations that carry an answer.

    The model reads a corrupted text, and one activation takes its value from the clean text. The score is the share of
    the difference between both texts that this restores. Each line of PAIRS has "clean", "corrupted" and "answer", the
    next token; with "wrong", the difference of both logits is measured.

    Example: taetpu lens patch latest pairs.jsonl --what residual --positions -o patches.png
    """
    from taetpu.lens.ablation.components import find_components, find_positions
    from taetpu.lens.ablation.patching import patch as measure
    from taetpu.lens.ablation.patching import read_pairs
    from taetpu.lens.ablation.path_patching import path_patching
    from taetpu.lens.label_files import read_pair_file

    check_picture(options.out)
    if options.receiver is not None and options.attribution:
        problem = "--attribution has no effect with --receiver: it estimates scores of whole activations"
        raise UserError(problem, path=("--attribution",), remedy="Remove --attribution or --receiver.")
    receiver = None if options.receiver is None else _read_receiver(options.receiver)
    columns = read_pair_file(options.pairs)
    model = options.open()
    pairs = read_pairs(model, columns["clean"], columns["corrupted"], columns["answer"], columns["wrong"] or None)
    longest = max(map(len, pairs.clean.inputs))
    if options.positions:
        components: Any = find_positions(model, options.what, longest, options.layer)
    else:
        components = find_components(model, options.what, options.layer, longest)
    if receiver is not None:
        patches = path_patching(model, pairs, components, receiver)
    else:
        with show_progress("patches") as progress:
            patches = measure(model, pairs, components, attribution=options.attribution, progress=progress)
    print_json(patches.to_dict()) if options.as_json else _print_scores(patches, options.top)
    write_picture(patches.chart, options.out)


def _read_receiver(text: str) -> "Receiver":
    from taetpu.lens.ablation.path_patching import Receiver

    match = RECEIVER.fullmatch(text)
    if match is None:
        problem = f"{text!r} is not a receiver"
        raise UserError(problem, path=("--receiver",), remedy="Write SITE@LAYER or SITE@LAYER.HEAD, as in mixer.k@1.0.")
    head = match["head"]
    return Receiver(match["site"], int(match["layer"]), None if head is None else int(head))


def _print_scores(patches: "Patches", top: int) -> None:
    rows = patches.rows()
    table = []
    for row in rows[:top]:
        cells = {"component": row["component"], "score": f"{row['score']:+.3f}"}
        if row["low"] == row["low"]:
            cells["95 % interval"] = f"{row['low']:+.3f} to {row['high']:+.3f}"
        table.append(cells | ({"estimate": f"{row['estimate']:+.3f}"} if "estimate" in row else {}))
    print_table(table)
    if len(rows) > top:
        size = f"{abs(rows[top]['score']):.3f}"
        print_text(f"{len(rows) - top:,} further rows, with scores of at most ±{size}: see --top and --json")
    pairs = plural(patches.effects.documents, "pair")
    runs = f"{patches.clean:.3f} clean, {patches.corrupted:.3f} corrupted"
    print_text(f"{patches.measure} of {pairs}: {runs}; a score of 1 restores the whole difference")
    if patches.warning is not None:
        log(f"warning: {patches.warning}")
    if patches.estimates is not None:
        shown = "not defined" if patches.correlation is None else f"{patches.correlation:.3f}"
        print_text(f"correlation of attribution patching with the exact scores: {shown}")
