"""`taetpu lens embed` and `probe`: activations at a site, and what can be read from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.lens_options import ModelOptions, Picture, TextOptions, check_picture, warn_of_unknown, write_picture
from taetpu.cli.options import integer, number, takes_options
from taetpu.cli.output import log, print_json, print_table, print_text

Site = Annotated[str, typer.Option("--site", help="The site, such as embed, residual, mixer.z, ffn.hidden or final.")]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(TextOptions):
    """Options of `taetpu lens embed`."""

    site: Site = "residual"
    layer: Annotated[
        int | None, integer("--layer", help="The layer, from 0; -1 is the last. Default: the last with the site.")
    ] = None
    pool: Annotated[
        str, typer.Option(metavar="none|mean|last", help="A vector for each token, or the mean or last one of a text.")
    ] = "none"
    lines: Annotated[bool, typer.Option("--lines", help="Read each line as a text.")] = False
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the activations: .npz or .csv.")
    ] = None


@takes_options
def embed(options: EmbedOptions) -> None:
    """Write the activations at a site.

    Example: taetpu lens embed latest sentences.txt --lines --pool mean -o vectors.npz
    """
    from taetpu.core.output_files import check_output
    from taetpu.lens.embed import FORMATS
    from taetpu.lens.embed import embed as read_site

    if options.out is not None:
        check_output(options.out, FORMATS)
    model = options.open()
    inputs: Any = options.read(model, options.lines)
    pool: Any = options.pool
    embeddings = read_site(model, inputs, options.site, layer=options.layer, pool=pool)
    if options.as_json:
        print_json(embeddings.to_dict())
    else:
        print_table([embeddings.row()], floats=".4g")
    if options.out is not None:
        embeddings.save(options.out)
        log(f"wrote {options.out}")
    elif not options.as_json:
        print_text("the activations were not written: add -o FILE, with the ending .npz or .csv")


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(ModelOptions):
    """Options of `taetpu lens probe`."""

    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="A .jsonl or .csv file with texts and labels.")]
    site: Site = "residual"
    layer: Annotated[
        int | None, integer("--layer", help="The layer, from 0; -1 is the last. Default: each layer with the site.")
    ] = None
    pool: Annotated[
        str, typer.Option(metavar="mean|last", help="For labels of texts: the mean or last vector of a text.")
    ] = "mean"
    folds: Annotated[int, integer(least=2, help="The number of folds of cross-validation.")] = 5
    penalty: Annotated[float, number(least=0, help="The factor of half the sum of squared weights.")] = 1e-3
    seed: Annotated[int, integer(least=0, help="The seed of the folds and of the control task.")] = 0
    out: Picture = None


@takes_options
def probe(options: ProbeOptions) -> None:
    """Measure which labels can be read from a site.

    Each line of a .jsonl file has a text and its "label", or "labels" for each of its tokens. The accuracy of a linear
    probe is compared with that of a control task with random labels; the difference is its selectivity.

    Example: taetpu lens probe latest labels.jsonl --site residual -o probe.png
    """
    from taetpu.lens.label_files import read_labels
    from taetpu.lens.probe import probe as fit

    check_picture(options.out)
    model = options.open()
    inputs, labels = read_labels(options.labels)
    warn_of_unknown(model, "".join(text for text in inputs if isinstance(text, str)))
    pool: Any = options.pool
    probes = fit(
        model,
        inputs,
        labels,
        options.site,
        layer=options.layer,
        pool=pool,
        folds=options.folds,
        penalty=options.penalty,
        seed=options.seed,
    )
    if options.as_json:
        print_json(probes.to_dict())
    else:
        names = ("accuracy", "control", "selectivity", "majority")
        print_table([{"layer": "-" if row["layer"] is None else row["layer"],
                      **{name: f"{row[name]:.3f} ± {row[f'{name}_error']:.3f}" for name in names}}
                     for row in probes.rows()])  # fmt: skip
        print_text(
            f"{probes.examples:,} labelled {probes.per}s, {len(probes.labels)} labels; means and standard errors over "
            f"{probes.folds} folds"
        )
    write_picture(probes.chart, options.out)
