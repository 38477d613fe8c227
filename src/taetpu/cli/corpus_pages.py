"""The page of published corpora in the catalog: `taetpu catalog corpus`."""

import typer

from taetpu.cli.kind_pages import wrapped
from taetpu.cli.output import print_json


def print_corpora(as_json: bool) -> None:
    """Print the corpora that a task of texts may name: what they are, licence, size of the download, and splits."""
    from taetpu.data.remote.named import PUBLISHED

    rows = {
        name: {"about": corpus.about, "licence": corpus.licence, "download": corpus.size, "splits": [*corpus.splits]}
        for name, corpus in PUBLISHED.items()
    }
    if as_json:
        addresses = {
            name: {split: part.address for split, part in corpus.splits.items()} for name, corpus in PUBLISHED.items()
        }
        print_json({"corpus": {name: {**row, "addresses": addresses[name]} for name, row in rows.items()}})
        return
    for name, corpus in PUBLISHED.items():
        text = (
            f"{corpus.about}. Licence: {corpus.licence}. Download: {corpus.size}. Splits: {', '.join(corpus.splits)}."
        )
        typer.echo(wrapped(text, f"{name:<16} "))
    typer.echo("\nUse one as `task: {kind: text, source: NAME, seq_len: 256}`.")
