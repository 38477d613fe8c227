"""Norms of the residual stream after each layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array
from jaxtyping import Float, Int

from taetpu.core.short_repr import short_repr
from taetpu.core.sites import Read, capture
from taetpu.lens.activations import by_layer, in_batches, sequences
from taetpu.lens.inputs import Tokens
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import visible


@dataclass(frozen=True)
class ResidualNorms:
    """The Euclidean norms of the residual stream of one text.

    With several residual streams, the norm is that of their sum, which the final norm reads.

    Attributes:
        model: The name of the model.
        tokens: The token numbers.
        texts: The text of each token.
        layers: The names of the layers: `embed` for the stream before the first layer, then the layers' numbers.
        norms: The norms.
    """

    __repr__ = short_repr

    model: str
    tokens: Int[np.ndarray, " seq"]
    texts: list[str]
    layers: list[str]
    norms: Float[np.ndarray, "layer seq"]

    @property
    def not_finite(self) -> str | None:
        """The name of the first layer with a norm that is NaN or infinite; None if all norms are finite."""
        wrong = ~np.isfinite(self.norms).all(-1)
        return self.layers[int(wrong.argmax())] if wrong.any() else None

    @property
    def not_finite_positions(self) -> list[int]:
        """The positions whose norms are NaN or infinite in the layer `not_finite`; empty if all norms are finite."""
        wrong = ~np.isfinite(self.norms)
        return np.flatnonzero(wrong[int(wrong.any(-1).argmax())]).tolist()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layer: statistics over positions, and the norm of the first token."""
        return [
            {
                "layer": layer,
                "mean": float(norms.mean()),
                "min": float(norms.min()),
                "max": float(norms.max()),
                "first token": float(norms[0]),
            }
            for layer, norms in zip(self.layers, self.norms, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the norms as plain data."""
        norms = [{"layer": layer, "norms": layer_norms.astype(float).tolist()}
                 for layer, layer_norms in zip(self.layers, self.norms, strict=True)]  # fmt: skip
        return {"model": self.model, "ids": self.tokens.tolist(), "tokens": self.texts,
                "not_finite": self.not_finite, "not_finite_positions": self.not_finite_positions,
                "layers": norms}  # fmt: skip

    def chart(self) -> Any:
        """Return an Altair chart of the norm for each layer and position.

        Raises:
            UserError: if there are too many positions.
        """
        from taetpu.report.token_charts import layer_chart

        shown = [visible(text) for text in self.texts]
        title = f"norm of the residual stream of {self.model}"
        return layer_chart(np.maximum(self.norms, 1e-6), self.layers, shown, title, "norm", logarithmic=True)


def residual_norms(opened: OpenedModel, inputs: Any) -> list[ResidualNorms]:
    """Return the norms of the residual stream of each input. Norms that are not finite show where a model fails.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.

    Raises:
        UserError: if an input cannot be read.
    """
    rows = sequences(opened, inputs, logits=False)
    layers = ["embed", *map(str, range(len(opened.config.layers)))]
    results: dict[int, ResidualNorms] = {}
    for numbers, _, batch in in_batches(rows):
        sites = _read_streams(opened, batch)
        first = np.asarray(sites["embed"]) * opened.model.streams
        streams = [first, *(_sum_streams(opened, x) for x in by_layer(opened, "residual", sites["residual"]).values())]
        norms = np.linalg.norm(np.stack(streams), axis=-1)
        for place, i in enumerate(numbers):
            text_norms = batch.strip(place, norms[:, place], 1)
            results[i] = ResidualNorms(opened.name, rows[i], opened.token_texts(rows[i]), layers, text_norms)
    return [results[i] for i in range(len(rows))]


def _read_streams(opened: OpenedModel, batch: Tokens) -> Mapping[str, Read]:
    """Return the activations at the sites `embed` and `residual`. The logits are not computed."""

    def read(model: Any, ids: Array, padding: Array) -> Any:
        return capture(model, ["embed", "residual"])(ids, padding=padding)[1]

    return opened.program(("norms",), lambda: read, finite=False)(opened.model, batch.ids, batch.padding)


def _sum_streams(opened: OpenedModel, x: np.ndarray) -> np.ndarray:
    return x if opened.model.streams == 1 else x.sum(2)
