"""Direct logit attribution: what the embedding, each branch and each head add to a logit.

All norms on the residual stream are frozen: they keep the scale 1 / sqrt(mean square + eps) that they have in the
forward pass. The outputs of the branches are constants. Then a logit before the soft cap is an affine function of the
embeddings and of the outputs of the branches. The contribution of a part is its product with the gradient of the logit,
and `norm biases`, in models that have them, is the logit without any part. Together, they sum to the logit.

The output of a mixer is further divided into the outputs of its heads, each multiplied by its rows of the output
projection, and the projection's bias.

This holds for all placements of norms, and for parallel branches and several residual streams with trained weights. It
does not hold if a part of the stream is not a sum, or if a norm is another function of its input: these are refused.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; TransformerLens,
    `ActivationCache.logit_attrs`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.core.sites import Edit, capture
from taetpu.lens.activations import by_layer, check_position, in_batches, logit_tokens, sequences
from taetpu.lens.inputs import Tokens, pad_left
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import read_token
from taetpu.nn.lm import LM

BRANCHES = ("first_ffn", "mixer", "ffn")
"""The branches of a layer in order; `first_ffn` is that of order `macaron`."""
STREAM_NORMS = ("first_ffn_norm", "mixer_norm", "ffn_norm", "final_norm")
DYNAMIC = ("dynamic-hyper-connections", "mhc")
"""Residual connections whose weights depend on the stream."""
TOLERANCE = 1e-3
"""Maximum difference of the contributions' sum and the logit, as a share of the largest contribution."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Attribution:
    """The contributions to the logit of a target at each position, or to the difference of two logits, for one text.

    Attributes:
        model: The name of the model.
        tokens: The token numbers.
        texts: The text of each token.
        targets: The token whose logit is divided, at each position.
        target_texts: The text of the targets.
        minus: The token whose logit is subtracted; None if no logit is subtracted.
        minus_text: The text of that token.
        logits: The logit or the difference at each position, before the soft cap.
        components: The names of the parts: `embed`, `0.mixer`, `0.ffn`, ...; `norm biases` if norms have biases.
        values: The contributions, which sum to the logits.
        heads: The contributions of each head, by layer. Layers whose mixer has no heads are absent.
        biases: The contribution of the bias of the mixer's output projection, by layer.
    """

    __repr__ = short_repr

    model: str
    tokens: Int[np.ndarray, " seq"]
    texts: list[str]
    targets: Int[np.ndarray, " seq"]
    target_texts: list[str]
    minus: int | None
    minus_text: str | None
    logits: Float[np.ndarray, " seq"]
    components: list[str]
    values: Float[np.ndarray, "component seq"]
    heads: Mapping[int, Float[np.ndarray, "head seq"]]
    biases: Mapping[int, Float[np.ndarray, " seq"]]

    def rows(self, position: int = -1, *, heads: bool = True) -> list[dict[str, Any]]:
        """Return a row for each part at a position, and a row for the logit.

        Args:
            position: The position. -1 is the last position.
            heads: Whether the parts of the mixers follow their mixers.

        Raises:
            UserError: if the position does not exist.
        """
        at = check_position(position, len(self.tokens))
        rows = []
        for name, values in zip(self.components, self.values, strict=True):
            rows.append({"part": name, "contribution": float(values[at])})
            layer, _, branch = name.partition(".")
            if heads and branch == "mixer" and int(layer) in self.heads:
                head_values = enumerate(self.heads[int(layer)])
                rows += [{"part": f"  head {head}", "contribution": float(part[at])} for head, part in head_values]
                if int(layer) in self.biases:
                    rows.append({"part": "  bias", "contribution": float(self.biases[int(layer)][at])})
        whole = "logit" if self.minus is None else "difference"
        return [*rows, {"part": whole, "contribution": float(self.logits[at])}]

    def to_dict(self) -> dict[str, Any]:
        """Return all contributions as plain data."""
        values = zip(self.components, self.values.astype(float).tolist(), strict=True)
        return {
            "model": self.model,
            "ids": self.tokens.tolist(),
            "tokens": self.texts,
            "targets": self.targets.tolist(),
            "target_tokens": self.target_texts,
            "minus": self.minus,
            "logits": self.logits.astype(float).tolist(),
            "parts": dict(values),
            "heads": {str(layer): values.astype(float).tolist() for layer, values in self.heads.items()},
            "biases": {str(layer): values.astype(float).tolist() for layer, values in self.biases.items()},
        }

    def chart(self, position: int = -1) -> Any:
        """Return an Altair chart of the contributions at a position: a bar for each part, and the heads by layer.

        Raises:
            UserError: if the position does not exist.
        """
        import altair as alt

        from taetpu.report.charts import themed
        from taetpu.report.token_charts import bar_chart, head_picture

        at = check_position(position, len(self.tokens))
        less = "" if self.minus_text is None else f" minus {self.minus_text!r}"
        title = f"contribution to the logit of {self.target_texts[at]!r}{less}"
        bars = bar_chart(self.components, self.values[:, at].astype(float).tolist(), title)
        heads = {(layer, head): float(contributions[at])
                 for layer, part in self.heads.items() for head, contributions in enumerate(part)}  # fmt: skip
        return themed(alt.hconcat(bars, head_picture("heads", heads, signed=True)) if heads else bars)


# --- computation ------------------------------------------------------------------------------------------------------


def attribution(
    opened: OpenedModel, inputs: Any, *, target: str | int | None = None, minus: str | int | None = None
) -> list[Attribution]:
    """Return what each part of the model adds to the logit of a target, for each input and position.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.
        target: The target of all positions, named as in `token_texts.read_token`. By default, the target of a position
            is the next token of the text, and that of the last position is its most likely token. If tokens see later
            ones, the target is the token at the position.
        minus: A token whose logit is subtracted, named as in `token_texts.read_token`.

    Raises:
        UserError: if an input or a token cannot be read, or the logits of this model are not sums.
    """
    opened.check_language_model()
    check_linear(opened)
    rows = sequences(opened, inputs)
    fixed = None if target is None else read_token(opened, target, "target")
    less = None if minus is None else read_token(opened, minus, "minus")
    results: dict[int, Attribution] = {}
    for numbers, filled, batch in in_batches(rows, logit_tokens(opened)):
        goals = pad_left([_targets(opened, rows[i], fixed) for i in filled]).ids
        parts = _attribute(opened, batch, goals, less)
        for place, i in enumerate(numbers):
            results[i] = _of_text(opened, parts, batch, place, rows[i], less)
    return [results[i] for i in range(len(rows))]


def _targets(opened: OpenedModel, row: np.ndarray, fixed: int | None) -> np.ndarray:
    """Return the targets of a text; -1 for the most likely token."""
    return opened.targets(row) if fixed is None else np.full(len(row), fixed)


@dataclass(frozen=True)
class _Parts:
    """The contributions in a batch, padding included; see `Attribution`."""

    targets: np.ndarray
    logits: np.ndarray
    components: list[str]
    values: np.ndarray
    heads: dict[int, np.ndarray]
    biases: dict[int, np.ndarray]


def _of_text(
    opened: OpenedModel, parts: _Parts, batch: Tokens, place: int, row: np.ndarray, less: int | None
) -> Attribution:
    targets, logits = (batch.strip(place, values[place]) for values in (parts.targets, parts.logits))
    values = batch.strip(place, parts.values[:, place], 1)
    apart = np.abs(values.sum(0) - logits)
    if not (apart <= TOLERANCE * np.maximum(1.0, np.abs(values).max(0))).all():
        problem = f"the contributions differ from the logit by {apart.max():.3g}, so the logit is not a sum of parts"
        remedy = "Use a model whose stream is a sum of the outputs of its branches, or the logit lens."
        raise UserError(problem, remedy=remedy)
    return Attribution(
        model=opened.name,
        tokens=row,
        texts=opened.token_texts(row),
        targets=targets,
        target_texts=opened.token_texts(targets),
        minus=less,
        minus_text=None if less is None else opened.decode([less]),
        logits=logits,
        components=parts.components,
        values=values,
        heads={layer: batch.strip(place, contributions[place], 1) for layer, contributions in parts.heads.items()},
        biases={layer: batch.strip(place, contributions[place]) for layer, contributions in parts.biases.items()},
    )


def _attribute(opened: OpenedModel, batch: Tokens, targets: np.ndarray, less: int | None) -> _Parts:
    """Return the contributions in a batch. A target of -1 becomes the most likely token."""
    layers = {f"{branch}.out": opened.site_layers[f"{branch}.out"] for branch in BRANCHES
              if f"{branch}.out" in opened.site_layers}  # fmt: skip
    scales = stream_scales(opened)
    heads = ("mixer.z",) if "mixer.z" in opened.site_layers else ()
    out = opened(batch, ("embed", *layers, *scales, *heads))
    read = {site: by_layer(opened, site, values) for site, values in out.sites.items()}
    names = {
        (layer, site.removesuffix(".out")): f"{site}@{layer}" for site, places in layers.items() for layer in places
    }
    order = sorted(names, key=lambda key: (key[0], BRANCHES.index(key[1])))
    parts = {"embed@None": read["embed"][None], **{names[key]: read[f"{key[1]}.out"][key[0]] for key in order}}
    frozen = {f"{site}@{layer}": values for site in scales for layer, values in read[site].items()}
    targets = np.where(targets >= 0, targets, np.asarray(out.logits.argmax(-1)))
    edits = tuple(_edit(name) for name in (*parts, *frozen))
    program = opened.program(("attribution", edits, less is None), lambda: _build(edits, less is not None))
    other = np.int32(0 if less is None else less)
    logits, rest, slopes = program(opened.model, batch.ids, batch.padding, targets, other, parts, frozen)
    slopes = {name: np.asarray(slope) for name, slope in slopes.items()}
    values = [np.einsum("bsd,bsd->bs", slopes[name], parts[name], dtype=np.float64) for name in parts]
    components = ["embed", *(f"{layer}.{branch}" for layer, branch in order)]
    head_values, biases = _split_heads(opened, read, slopes)
    if np.any(rest):
        components.append("norm biases")
        values.append(np.asarray(rest, np.float64))
    whole = np.stack(values)
    return _Parts(targets, np.asarray(logits, np.float64), components, whole, head_values, biases)


def _replace(x: Array, value: Array | None) -> Array:
    assert value is not None
    return value


def _edit(name: str) -> Edit:
    """Return the edit that replaces a site by a value, from a name such as `mixer.out@3`."""
    site, _, layer = name.partition("@")
    return Edit(site, _replace, None if layer == "None" else int(layer), name)


def _build(edits: Sequence[Edit], subtracts: bool) -> Callable[..., Any]:
    """Return the function that computes logits, the logits without any part, and the gradients of parts."""

    def attribute(
        model: LM, ids: Array, padding: Array, targets: Array, other: Array, parts: Values, frozen: Values
    ) -> tuple[Array, Array, dict[str, Array]]:
        def forward() -> Array:
            ctx, x = model.start(ids, padding=padding)
            return model.embedding.decode(model.read_out(model.run(x, ctx)[0]))

        def logits(parts: Values) -> tuple[Array, Array]:
            raw, _ = capture(forward, (), edits)(values={**parts, **frozen})
            values = jnp.take_along_axis(raw, targets[..., None], -1)[..., 0]
            values = values - raw[..., other] if subtracts else values
            return values.sum(), values

        (_, values), slopes = jax.value_and_grad(logits, has_aux=True)(dict(parts))
        rest = logits(jax.tree.map(jnp.zeros_like, dict(parts)))[1]
        return values, rest, slopes

    return attribute


def _split_heads(
    opened: OpenedModel, read: Mapping[str, Mapping[int | None, np.ndarray]], slopes: Mapping[str, np.ndarray]
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Return the contributions of each head and of the bias of the output projection, by layer.

    A mixer has heads if its output is the sum of its heads' outputs `mixer.z`, each times its rows of `wo`, and `bo`.
    """
    heads, biases = {}, {}
    for layer, z in read.get("mixer.z", {}).items():
        assert layer is not None
        mixer = _block(opened.model, layer).mixer
        weight, bias = getattr(mixer, "wo", None), getattr(mixer, "bo", None)
        if z.ndim != 4 or weight is None or weight.shape[0] != z.shape[1] * z.shape[3]:
            continue
        rows = np.asarray(weight, np.float64).reshape(z.shape[1], z.shape[3], -1)
        added = np.zeros(rows.shape[-1]) if bias is None else np.asarray(bias, np.float64)
        whole = np.einsum("bhsd,hdm->bsm", z, rows, optimize=True) + added
        out = read["mixer.out"][layer]
        if np.abs(whole - out).max() > 1e-3 * max(1.0, float(np.abs(out).max())):
            continue
        slope = slopes[f"mixer.out@{layer}"]
        heads[layer] = np.einsum("bhsd,hdm,bsm->bhs", z, rows, slope, optimize=True)
        if bias is not None:
            biases[layer] = slope @ added
    return heads, biases


def _block(model: LM, layer: int) -> Any:
    """Return the block of a layer, with the changes of its adapter."""
    stack = next(stack for stack in model.stacks if stack.start <= layer < stack.start + stack.size)
    block = stack.layer(layer - stack.start, None if stack.source is None else model.stacks[stack.source].block)
    return block if block.adapter is None else block.adapter(block)


# --- models whose logits are sums -------------------------------------------------------------------------------------


def stream_scales(opened: OpenedModel) -> list[str]:
    """Return the sites of the scales of norms that may be on the residual stream."""
    return [site for site in opened.site_layers if site.endswith(".scale") and site.partition(".")[0] in STREAM_NORMS]


def check_linear(opened: OpenedModel) -> None:
    """Raise `UserError` if the logits of a model are not sums of parts, with the reason."""
    reason, readout = None, opened.config.readout.kind
    if readout != "none":
        reason = f"readout {readout!r} is not a linear function of the stream"
    for number, layer in enumerate(opened.config.layers if reason is None else ()):
        if layer.residual.kind in DYNAMIC:
            reason = f"residual {layer.residual.kind!r} of layer {number} has weights that depend on the stream"
        name = {"post": "mixer_norm", "output": "mixer_norm", "sandwich": "mixer_norm.after"}.get(layer.norm.placement)
        if name and number not in _scaled_layers(opened, name):
            reason = f"norm {layer.norm.kind!r} of layer {number} has no scale that could be frozen"
        if reason:
            break
    norm = opened.config.norm
    if (
        not reason
        and opened.model.norm is not None
        and norm.kind != "none"
        and "final_norm.scale" not in (opened.site_layers)
    ):
        reason = f"the final norm {norm.kind!r} has no scale that could be frozen"
    if reason:
        problem = f"the logits of this model are not sums of its parts: {reason}"
        raise UserError(problem, remedy="Use the logit lens, or ablate parts instead.")


def _scaled_layers(opened: OpenedModel, norm: str) -> set[int]:
    """Return the layers in which each branch's norm has a scale, or in which the branch of that norm is absent."""
    layers = {*range(len(opened.config.layers))}
    for branch in BRANCHES:
        name = f"{branch}_norm{norm.removeprefix('mixer_norm')}"
        present = {*opened.site_layers.get(f"{name}.out", ())}
        layers -= present - {*opened.site_layers.get(f"{name}.scale", ())}
    return layers
