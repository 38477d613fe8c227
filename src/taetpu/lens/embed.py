"""Activations at a site, of each token or pooled over texts, and their files."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from taetpu.core.atomic_files import explain_os_error
from taetpu.core.errors import UserError, check_known
from taetpu.core.output_files import check_output
from taetpu.core.short_repr import short_repr
from taetpu.lens.activations import (
    by_layer,
    check_site,
    check_site_layer,
    in_batches,
    logit_tokens,
    sequences,
    site_shapes,
)
from taetpu.lens.array_files import write_arrays
from taetpu.lens.opened import OpenedModel

Pool = Literal["none", "mean", "last"]
FORMATS = (".npz", ".csv")


@dataclass(frozen=True)
class Embeddings:
    """Activations at a site of one layer, of all texts one after the other.

    Attributes:
        model: The name of the model.
        site: The name of the site.
        layer: The layer; None for a site outside the layers.
        pool: `none` for a row for each token, or `mean` or `last` for a row for each text.
        texts: The number of the text of each row.
        positions: The position of each row's token; -1 for a mean over positions.
        tokens: The number of each row's token; -1 for a mean over positions.
        token_texts: The text of each row's token; empty for a mean over positions.
        vectors: The activations. The axes after the first are those of the site without positions, such as heads.
    """

    __repr__ = short_repr

    model: str
    site: str
    layer: int | None
    pool: Pool
    texts: Int[np.ndarray, " row"]
    positions: Int[np.ndarray, " row"]
    tokens: Int[np.ndarray, " row"]
    token_texts: list[str]
    vectors: Float[np.ndarray, "row ..."]

    def matrix(self) -> Float[np.ndarray, "row size"]:
        """Return the activations of each row as one vector."""
        return self.vectors.reshape(len(self.vectors), -1)

    def row(self) -> dict[str, Any]:
        """Return the size and statistics of the activations."""
        flat = self.matrix()
        return {
            "site": self.site if self.layer is None else f"{self.site} of layer {self.layer}",
            "rows": len(flat),
            "size": " x ".join(map(str, self.vectors.shape[1:])) or "1",
            "mean": float(flat.mean()),
            "sd": float(flat.std()),
            "norm": float(np.linalg.norm(flat, axis=1).mean()),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all activations as plain data."""
        return {
            **{name: getattr(self, name) for name in ("model", "site", "layer", "pool")},
            "texts": self.texts.tolist(),
            "positions": self.positions.tolist(),
            "ids": self.tokens.tolist(),
            "tokens": self.token_texts,
            "vectors": self.vectors.astype(float).tolist(),
        }

    def save(self, file: str | Path) -> None:
        """Write the activations to a `.npz` or `.csv` file; the suffix selects the format.

        A `.npz` file has the arrays `vectors`, `texts`, `positions`, `tokens` and `token_texts`. A `.csv` file has a
        line for each row.

        Raises:
            UserError: if the file has another ending or cannot be written.
        """
        path = check_output(file, FORMATS)
        if path.suffix == ".npz":
            names = ("vectors", "texts", "positions", "tokens")
            arrays = {name: getattr(self, name) for name in names}
            write_arrays(path, {**arrays, "token_texts": np.array(self.token_texts, np.str_)})
            return
        flat = self.matrix()
        with explain_os_error("write", path, option="-o"), path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "position", "id", "token", *range(flat.shape[1])])
            about = zip(
                self.texts.tolist(), self.positions.tolist(), self.tokens.tolist(), self.token_texts, strict=True
            )
            writer.writerows([*row, *vector.tolist()] for row, vector in zip(about, flat, strict=True))


def embed(
    opened: OpenedModel, inputs: Any, site: str = "residual", *, layer: int | None = None, pool: Pool = "none"
) -> Embeddings:
    """Return the activations of inputs at a site.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.
        site: The site; see `OpenedModel.site_layers`.
        layer: The layer, by default the last one that has the site. -1 is the last layer.
        pool: `none` for the activations of each token, `mean` for the mean over the tokens of a text, `last` for its
            last token.

    Raises:
        UserError: if an input cannot be read, the model or layer has no such site, the site has no axis of positions or
            several, or `pool` is unknown.
    """
    check_known(pool, get_args(Pool), f"unknown pooling {pool!r}", path=("pool",))
    number = choose_layer(opened, site, layer)
    shape = site_shapes(opened, site)[number]
    if shape.positions != 1:
        what = "no axis of positions" if not shape.positions else "two axes of positions"
        other = "taetpu lens attention" if shape.positions else "another site"
        problem = f"the activations at site {site!r} have {what}, so they are not vectors of tokens"
        raise UserError(problem, path=("site",), remedy=f"Use {other}.")
    rows, pooled = sequences(opened, inputs), dict[int, np.ndarray]()
    for numbers, _, batch in in_batches(rows, logit_tokens(opened)):
        read = by_layer(opened, site, opened(batch, [site]).sites[site])[number]
        read = np.moveaxis(read, shape.position or 0, 1)
        for place, i in enumerate(numbers):
            activations = batch.strip(place, read[place])
            rows_of = {"none": activations, "mean": activations.mean(0, keepdims=True), "last": activations[-1:]}
            pooled[i] = rows_of[pool]
    sizes = [len(pooled[i]) for i in range(len(rows))]
    if pool == "mean":
        positions = ids = np.full(len(rows), -1)
        texts = [""] * len(rows)
    else:
        starts = [len(row) - size for row, size in zip(rows, sizes, strict=True)]
        positions = np.concatenate([np.arange(start, len(row)) for start, row in zip(starts, rows, strict=True)])
        ids = np.concatenate([row[start:] for start, row in zip(starts, rows, strict=True)])
        texts = opened.token_texts(ids)
    vectors = np.concatenate([pooled[i] for i in range(len(rows))])
    owners = np.repeat(np.arange(len(rows)), sizes)
    return Embeddings(opened.name, site, number, pool, owners, positions, ids, texts, vectors)


def choose_layer(opened: OpenedModel, site: str, layer: int | None) -> int | None:
    """Return the number of the layer whose site is read: by default, the last one that has the site.

    Raises:
        UserError: if the model or the layer has no such site.
    """
    check_site(opened, site)
    if layer is not None:
        return check_site_layer(opened, site, layer)
    layers = opened.site_layers[site]
    return layers[-1] if layers else None
