"""The logit lens: the predictions that the residual stream after each layer would give.

The stream passes the final norm and the output embedding, with the soft cap of the logits if the model has one. After
the last layer, the predictions are those of the model. A model with norms after the sum (`post`) has no final norm.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.core.sites import capture
from taetpu.lens.activations import check_position, in_batches, logit_tokens, sequences
from taetpu.lens.inputs import pad_left
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import read_token, visible
from taetpu.nn.lm import LM


@dataclass(frozen=True)
class LogitLens:
    """The predictions of each layer for one text.

    Attributes:
        model: The name of the model.
        tokens: The token numbers.
        texts: The text of each token.
        layers: The names of the layers: `embed` for the stream before the first layer, then the layers' numbers.
        top: The most likely tokens, in order.
        top_texts: The text of the most likely tokens.
        probabilities: The probabilities of the most likely tokens.
        targets: The target of each position; -1 without a target.
        ranks: The rank of the target, 1 for the most likely token; 0 without a target.
        target_probabilities: The probability of the target; NaN without a target.
        predicts_next: Whether the predictions are those of next tokens, and not of the tokens at their positions.
    """

    __repr__ = short_repr

    model: str
    tokens: Int[np.ndarray, " seq"]
    texts: list[str]
    layers: list[str]
    top: Int[np.ndarray, "layer seq top"]
    top_texts: list[list[list[str]]]
    probabilities: Float[np.ndarray, "layer seq top"]
    targets: Int[np.ndarray, " seq"]
    ranks: Int[np.ndarray, "layer seq"]
    target_probabilities: Float[np.ndarray, "layer seq"]
    predicts_next: bool = True

    def rows(self, position: int = -1) -> list[dict[str, Any]]:
        """Return a row for each layer: the most likely tokens after a position, and the target's rank and probability.

        Raises:
            UserError: if the position does not exist.
        """
        at = check_position(position, len(self.tokens))
        rows = []
        for i, layer in enumerate(self.layers):
            pairs = zip(self.top_texts[i][at], self.probabilities[i, at], strict=True)
            best = {f"top {n + 1}": f"{visible(text)} {share:.3f}" for n, (text, share) in enumerate(pairs)}
            row: dict[str, Any] = {"layer": layer, **best}
            if self.targets[at] >= 0:
                row |= {"rank": int(self.ranks[i, at]), "p(target)": f"{self.target_probabilities[i, at]:.3g}"}
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain data. Positions without a target have null."""
        has = self.targets >= 0
        return {
            "model": self.model,
            "ids": self.tokens.tolist(),
            "tokens": self.texts,
            "targets": [int(target) if target >= 0 else None for target in self.targets],
            "layers": [
                {
                    "layer": layer,
                    "top": self.top[i].tolist(),
                    "top_tokens": self.top_texts[i],
                    "probabilities": self.probabilities[i].astype(float).tolist(),
                    "rank": [int(rank) if known else None for rank, known in zip(self.ranks[i], has, strict=True)],
                    "target_probability": self.target_probabilities[i].astype(float).tolist(),
                }
                for i, layer in enumerate(self.layers)
            ],
        }

    def chart(self) -> Any:
        """Return an Altair chart of the most likely token and its probability, for each layer and position.

        Raises:
            UserError: if there are too many positions.
        """
        from taetpu.report.token_charts import layer_chart

        words = [[visible(tops[0]) for tops in layer] for layer in self.top_texts]
        shown = [visible(text) for text in self.texts]
        title = f"most likely {'next ' * self.predicts_next}token after each layer of {self.model}"
        return layer_chart(self.probabilities[..., 0], self.layers, shown, title, "probability", words=words)


def logit_lens(opened: OpenedModel, inputs: Any, *, top: int = 3, target: str | int | None = None) -> list[LogitLens]:
    """Return the predictions of each layer for each input.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.
        top: The number of most likely tokens.
        target: The target of all positions, named as in `token_texts.read_token`. By default, the target of a position
            is the next token of the text, and the last position has no target. If tokens see later ones, the target is
            the token at the position.

    Raises:
        UserError: if an input or the target cannot be read, or `top` is out of range.
    """
    opened.check_language_model()
    if not 1 <= top <= opened.vocab_size:
        remedy = f"Use 1 to {opened.vocab_size}."
        raise UserError(f"{top} of the most likely tokens were requested", path=("top",), remedy=remedy)
    rows = sequences(opened, inputs)
    fixed = None if target is None else read_token(opened, target, "target")
    goals = [np.full(len(row), fixed) if fixed is not None else opened.targets(row) for row in rows]
    layers = ["embed", *map(str, range(len(opened.config.layers)))]
    results: dict[int, LogitLens] = {}
    for numbers, filled, batch in in_batches(rows, logit_tokens(opened)):
        targets = pad_left([goals[i] for i in filled])
        program = opened.program(("logit-lens", top), lambda: _build(top))
        read = [np.asarray(a) for a in program(opened.model, batch.ids, batch.padding, np.maximum(targets.ids, 0))]
        for place, i in enumerate(numbers):
            best, shares, ranks, picked = (batch.strip(place, values[:, place], 1) for values in read)
            known = goals[i] >= 0
            texts = np.array(opened.token_texts(best), object).reshape(best.shape).tolist()
            results[i] = LogitLens(
                opened.name, rows[i], opened.token_texts(rows[i]), layers, best, texts, shares, goals[i],
                np.where(known, ranks, 0), np.where(known, picked, np.nan), opened.predicts_next,
            )  # fmt: skip
    return [results[i] for i in range(len(rows))]


def _build(top: int) -> Callable[..., Any]:
    """Return the function that reads the stream after each layer, and decodes it layer by layer."""

    def lens(model: LM, ids: Array, padding: Array, targets: Array) -> Any:
        def stream() -> Array:
            ctx, x = model.start(ids, padding=padding)
            return model.run(x, ctx)[0]

        _, reads = capture(stream, ("embed", "residual"))()
        first: Any = reads["embed"] if model.streams == 1 else jnp.repeat(reads["embed"][:, :, None], model.streams, 2)
        streams = jnp.concatenate([first[None], jnp.asarray(reads["residual"])])

        def decode(carry: None, x: Array) -> tuple[None, tuple[Array, ...]]:
            logits = model.decode(model.read_out(x))
            best = jax.lax.top_k(logits, top)[1]
            shares = jax.nn.softmax(logits, -1)
            picked = jnp.take_along_axis(logits, targets[..., None], -1)
            share = jnp.take_along_axis(shares, targets[..., None], -1)[..., 0]
            return None, (best, jnp.take_along_axis(shares, best, -1), 1 + (logits > picked).sum(-1), share)

        return jax.lax.scan(decode, None, streams)[1]

    return lens
