"""Attention weights of each layer and head, and of one head over the course of training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.lens.ablation.removal import remove_same
from taetpu.lens.activations import (
    PATTERN,
    by_layer,
    check_head,
    check_site,
    check_site_layer,
    in_batches,
    logit_tokens,
    sequences,
    site_shapes,
)
from taetpu.lens.array_files import write_arrays
from taetpu.lens.opened import OpenedModel
from taetpu.lens.opening import open_run
from taetpu.lens.token_texts import visible
from taetpu.optim.site_statistics import attention_entropy

BATCH_TOKENS = 1024
"""Maximum number of tokens in a batch, because attention weights need much memory."""


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one text.

    Attributes:
        model: The name of the model.
        step: The number of training steps; None if unknown.
        tokens: The token numbers.
        texts: The text of each token.
        patterns: The weights of the selected heads, `(head, query, key)`, by layer. Masked weights are 0.
        heads: The numbers of the selected heads, by layer.
    """

    __repr__ = short_repr

    model: str
    step: int | None
    tokens: Int[np.ndarray, " seq"]
    texts: list[str]
    patterns: Mapping[int, Float[np.ndarray, "head seq seq"]]
    heads: Mapping[int, list[int]]

    def each(self) -> Iterator[tuple[int, int, Float[np.ndarray, "seq seq"]]]:
        """Yield the layer, the head and the weights of each selected head."""
        for layer, patterns in self.patterns.items():
            for head, pattern in zip(self.heads[layer], patterns, strict=True):
                yield layer, head, pattern

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each head: means over queries of its entropy and of some weights.

        `entropy` is in nats. `self`, `previous` and `first` are the weights of the query's own token, of the token
        before, and of the first token; `previous` and `first` are means over all queries but the first.
        """
        rows = []
        for layer, head, pattern in self.each():
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "entropy": float(attention_entropy(jnp.asarray(pattern)).mean()),
                    "self": float(np.diagonal(pattern).mean()),
                    "previous": _mean(np.diagonal(pattern, -1)),
                    "first": _mean(pattern[1:, 0]),
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as plain data."""
        maps = [{"layer": layer, "head": head, "weights": pattern.astype(float).round(6).tolist()}
                for layer, head, pattern in self.each()]  # fmt: skip
        return {"model": self.model, "step": self.step, "ids": self.tokens.tolist(), "tokens": self.texts, "maps": maps}

    def save(self, file: str | Path) -> None:
        """Write the weights to a `.npz` file: an array for each layer, such as `layer0`, and `tokens`.

        Raises:
            UserError: if the file has another ending or cannot be written.
        """
        arrays = {f"layer{layer}": patterns for layer, patterns in self.patterns.items()}
        heads = {f"heads{layer}": np.array(numbers) for layer, numbers in self.heads.items()}
        write_arrays(file, {"tokens": self.tokens, "texts": np.array(self.texts), **arrays, **heads})

    def chart(self) -> Any:
        """Return an Altair chart: a grid of layers and heads, or one head with the text of each token.

        Raises:
            UserError: if there are too many weights.
        """
        from taetpu.report.token_charts import attention_grid, attention_map

        maps, shown = [*self.each()], [visible(text) for text in self.texts]
        name = self.model if self.step is None else f"{self.model}, step {self.step:,}"
        if len(maps) == 1:
            layer, head, pattern = maps[0]
            return attention_map(pattern, shown, f"layer {layer}, head {head} of {name}")
        return attention_grid({(f"layer {layer}", str(head)): pattern for layer, head, pattern in maps}, shown, name)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def attention_maps(
    opened: OpenedModel, inputs: Any, *, layer: int | None = None, head: int | None = None
) -> list[AttentionMaps]:
    """Return the attention weights of each input.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.
        layer: The layer; by default, all layers with attention. -1 is the last layer.
        head: The head; by default, all heads.

    Raises:
        UserError: if the mixers of the model or layer compute no attention weights, the layer or head does not exist,
            an input cannot be read, or the weights of an input would need too much memory.
    """
    heads = select_heads(opened, layer, head)
    rows = sequences(opened, inputs, sum(map(len, select_heads(opened).values())))
    maps: dict[int, AttentionMaps] = {}
    for numbers, _, tokens in in_batches(rows, min(BATCH_TOKENS, logit_tokens(opened))):
        read = by_layer(opened, PATTERN, opened(tokens, [PATTERN]).sites[PATTERN])
        for place, i in enumerate(numbers):
            patterns = {number: tokens.strip(place, tokens.strip(place, read[number][place], 1), 2)[heads[number]]
                   for number in heads}  # fmt: skip
            maps[i] = AttentionMaps(opened.name, opened.step, rows[i], opened.token_texts(rows[i]), patterns, heads)
    return [maps[i] for i in range(len(rows))]


def select_heads(opened: OpenedModel, layer: int | None = None, head: int | None = None) -> dict[int, list[int]]:
    """Return the numbers of the selected heads of each selected layer with attention.

    Args:
        opened: The model.
        layer: The layer; by default, all layers with attention.
        head: The head; by default, all heads.

    Raises:
        UserError: if the layer or head does not exist, or if the layer computes no attention weights.
    """
    check_site(opened, PATTERN)
    layers = opened.site_layers[PATTERN] if layer is None else (check_site_layer(opened, PATTERN, layer),)
    shapes = site_shapes(opened, PATTERN)
    counts = {number: shapes[number].shape[1] or 1 for number in layers}
    if head is None:
        return {number: [*range(count)] for number, count in counts.items()}
    return {number: [check_head(opened, number, head, count)] for number, count in counts.items()}


# --- over training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadProgress:
    """The attention weights of one head at several training steps, for one text.

    Attributes:
        model: The name of the run.
        layer: The layer.
        head: The head.
        texts: The text of each token.
        steps: The training steps.
        patterns: The weights, `(step, query, key)`.
    """

    __repr__ = short_repr

    model: str
    layer: int
    head: int
    texts: list[str]
    steps: list[int]
    patterns: Float[np.ndarray, "step seq seq"]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each step; see `AttentionMaps.rows`."""
        rows = []
        for step, pattern in zip(self.steps, self.patterns, strict=True):
            maps = AttentionMaps(self.model, step, np.zeros(0, np.int32), [], {self.layer: pattern[None]},
                                 {self.layer: [self.head]})  # fmt: skip
            rows += [{"step": step, **row} for row in maps.rows()]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as plain data."""
        maps = [{"step": step, "weights": pattern.astype(float).round(6).tolist()}
                for step, pattern in zip(self.steps, self.patterns, strict=True)]  # fmt: skip
        return {"model": self.model, "layer": self.layer, "head": self.head, "tokens": self.texts, "maps": maps}

    def save(self, file: str | Path) -> None:
        """Write the weights to a `.npz` file with the arrays `steps` and `patterns`; see `AttentionMaps.save`."""
        write_arrays(file, {"steps": np.array(self.steps), "patterns": self.patterns, "texts": np.array(self.texts)})

    def chart(self) -> Any:
        """Return an Altair chart with a picture for each step."""
        from taetpu.report.token_charts import attention_grid

        name = f"layer {self.layer}, head {self.head} of {self.model}"
        maps = {("", f"{step:,}"): pattern for step, pattern in zip(self.steps, self.patterns, strict=True)}
        shown = [visible(text) for text in self.texts]
        return attention_grid(maps, shown, name, columns="training step")


def head_progress(
    opened: OpenedModel, inputs: Any, layer: int, head: int, steps: Sequence[int] | None = None
) -> HeadProgress:
    """Return the attention weights of one head at several training steps of a run.

    Args:
        opened: The model of a run.
        inputs: One text, or the numbers of its tokens.
        layer: The layer. -1 is the last layer.
        head: The head.
        steps: The steps; by default, all stored steps.

    Raises:
        UserError: if the model is not that of a run, a step is not stored, or as in `attention_maps`.
    """
    ((layer, _),) = select_heads(opened, layer, head).items()
    rows = sequences(opened, inputs)
    if len(rows) != 1:
        raise UserError(f"there are {len(rows)} texts, expected one", path=("input",), remedy="Pass one text.")
    at_steps = []
    for model in models_over_training(opened, steps):
        (maps,) = attention_maps(model, rows, layer=layer, head=head)
        at_steps.append((model.step or 0, maps.patterns[layer][0]))
    numbers, patterns = zip(*at_steps, strict=True)
    return HeadProgress(opened.name, layer, head, opened.token_texts(rows[0]), [*numbers], np.stack(patterns))


def models_over_training(opened: OpenedModel, steps: Sequence[int] | None = None) -> Iterator[OpenedModel]:
    """Yield the models of a run at stored steps, in order.

    Args:
        opened: The model of a run.
        steps: The steps; by default, all stored steps and the last one, that of the trained model.

    Raises:
        UserError: if the model is not that of a run, or a step is not stored.
    """
    if opened.run is None:
        problem = f"{opened.name} was not trained in a study, so it has no stored steps"
        raise UserError(problem, path=("steps",), remedy="Open a run.")
    last = (opened.run.result() or {}).get("steps")
    every = {*opened.run.checkpoints()} | ({last} if last is not None else set())
    for step in sorted({*steps} if steps is not None else every):
        if step == opened.step:
            yield opened
        else:
            where, stored_step = opened.run.where, None if step == last else step
            yield remove_same(open_run(where, step=stored_step, data_folder=opened.data_folder), opened)
