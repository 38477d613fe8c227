"""Comparison of two models' configs by what they compute in evaluation.

A model is exported as a Hugging Face architecture if its config, written for this architecture and read again, is
unchanged. Settings that act in training only, such as the dropout rate and the initial weights, are not compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.config import to_data
from taetpu.interop.families.base import Exported, Settings
from taetpu.interop.families.rope import yarn_attention_factor
from taetpu.nn.lm import LMConfig
from taetpu.nn.mask import FullConfig, MaskConfig, SlidingConfig
from taetpu.store.flat_config import flatten, format_value

TRAINING_ONLY = ("ffn.balance", "ffn.bias_rate")
AROUND = ("embedding", "stem", "readout", "logits")
"""The slots of a model outside its layers that are compared, in addition to the position at the input and the norm."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two models.

    Attributes:
        path: The dotted path of the setting in the model or in a layer.
        layer: The number of the first layer in which it differs; 0 if it is no setting of a layer.
        ours: The value in the first model.
        theirs: The value in the second model.
        place: Where it differs, for messages; empty if the path says so.
    """

    path: str
    layer: int
    ours: Any
    theirs: Any
    place: str = ""

    @property
    def text(self) -> str:
        """The setting with our value and its place, such as `ffn.kind=relu in layer 2`."""
        return f"{self.path}={format_value(self.ours)}{self.place}"

    @property
    def adds_bias(self) -> bool:
        """Whether the second model has biases or vectors of types that the first lacks, which may be zeros."""
        if self.path == "types":
            return self.ours == 0
        last = self.path.rpartition(".")[2] == "bias"
        if self.ours is False:
            return last and self.theirs in (True, "qkv", "out")
        return last and self.ours in ("qkv", "out") and self.theirs is True


class Comparable:
    """The settings of a model by dotted path, with defaults that depend on other settings written out.

    Args:
        config: The config of the model.
        shapes: The shapes of the model's parameters by logical name, which give the inner sizes of feed-forward
            networks; None if the config contains these sizes.
    """

    def __init__(self, config: LMConfig, shapes: Mapping[str, Sequence[int]] | None = None):
        self.written = [dict(flatten(to_data(layer))) for layer in config.layers]
        owners = [i if layer.same_as is None else layer.same_as for i, layer in enumerate(config.layers)]
        hidden = [_inner_size(shapes or {}, owner) for owner in owners]
        masks = [layer.typed_mixer.effective_mask for layer in config.layers]
        rows = zip(self.written, masks, hidden, strict=True)
        self.layers = [_explicit(dict(layer), config, mask, size) for layer, mask, size in rows]
        self.written_around = dict(flatten({slot: to_data(getattr(config, slot)) for slot in AROUND}))
        around = _with_bias(self.written_around, config)
        self.around: dict[str, Any] = {"dim": config.dim, "types": config.types or 0, **around}
        if self.around["stem.kind"] == "scale" and self.around["stem.factor"] is None:
            self.around["stem.factor"] = config.dim**0.5
        position = config.position
        at_input = to_data(position) if position.acts("at_input") or position.shared else {"kind": "none"}
        norm = dict(flatten({"norm": to_data(config.norm)}))
        norm.pop("norm.placement", None)
        self.outside = {**dict(flatten({"position": at_input})), **_with_bias(norm, config)}

    def differences(self, other: "Comparable") -> list[Difference]:
        """Return the settings that differ from those of another model with as many layers: each once."""
        differences: dict[str, Difference] = {}
        for (written, ours, layer, place), (written_there, theirs, *_) in zip(
            self._parts(), other._parts(), strict=True
        ):
            for path in _differing(ours, theirs):
                value, value_there = _as_written(written, ours, path), _as_written(written_there, theirs, path)
                differences.setdefault(path, Difference(path, layer, value, value_there, place))
        return list(differences.values())

    def _parts(self) -> Iterator[tuple[Settings, Settings, int, str]]:
        """Yield the settings of layers and those outside: as they are written, in full, the layer, and the place."""
        for i, (written, settings) in enumerate(zip(self.written, self.layers, strict=True)):
            yield written, settings, i, f" in layer {i}" * bool(i)
        yield self.written_around, self.around, 0, ""
        yield self.written_around, self.outside, 0, " outside the layers"

    def exported(self, **more: Any) -> Exported:
        """Return the settings for `Family.write`. `more` are further settings of the model."""
        layers = [{**layer, "num_layers": len(self.layers)} for layer in self.layers]
        return Exported({**layers[0], **self.around, **more}, layers)


def _as_written(written: Settings, explicit: Settings, path: str) -> Any:
    """Return the value of a setting; the value in the config if a number was computed from it."""
    value = explicit.get(path)
    return written[path] if isinstance(value, float) and path in written else value


def _inner_size(shapes: Mapping[str, Sequence[int]], layer: Any) -> int | None:
    """Return the inner size of a layer's feed-forward network, or of one of its experts; None if it is unknown."""
    names = (f"layers.{layer}.ffn.{name}" for name in ("down", "experts.down"))
    return next((int(shapes[name][-2]) for name in names if name in shapes), None)


def _explicit(layer: dict[str, Any], config: LMConfig, mask: MaskConfig | None, hidden: int | None) -> dict[str, Any]:
    """Return the settings of a layer in a form in which equal models have equal settings."""
    for name in TRAINING_ONLY:
        layer.pop(name, None)
    layer = _with_bias(layer, config)
    if "ffn.hidden" in layer:
        layer["ffn.hidden"] = layer["ffn.hidden"] or hidden
        layer.pop("ffn.mult", None)
    if layer["mixer.kind"] == "attention":
        heads = layer["mixer.num_heads"]
        size = layer["mixer.head_dim"] = layer["mixer.head_dim"] or config.dim // heads
        layer["mixer.num_kv_heads"] = layer["mixer.num_kv_heads"] or heads
        scale = layer["mixer.scale"]
        layer["mixer.scale"] = size**-0.5 if scale is None else 1 / size if scale == "1/head_dim" else scale
        layer.pop("mixer.causal")
        if isinstance(mask, FullConfig):
            layer["mixer.mask.kind"] = "full"
        elif isinstance(mask, SlidingConfig) and mask.width is None:
            layer = {path: value for path, value in layer.items() if not path.startswith("mixer.mask.")}
            layer["mixer.mask.kind"] = "causal" if mask.causal else "full"
    if layer["mixer.kind"] == "mamba2":
        layer["mixer.head_dim"] = layer["mixer.head_dim"] or math.gcd(layer["mixer.expand"] * config.dim, 64)
    scaling = layer.get("position.scaling.kind")
    if scaling == "yarn" and layer["position.scaling.attention_factor"] is None:
        layer["position.scaling.attention_factor"] = yarn_attention_factor(layer["position.scaling.factor"])
    return layer


def _with_bias(settings: dict[str, Any], config: LMConfig) -> dict[str, Any]:
    """Return settings in which components whose biases depend on `model.bias` have its value."""
    unset = [name for name, value in settings.items() if value is None and name.rpartition(".")[2] == "bias"]
    return {**settings, **dict.fromkeys(unset, config.bias)}


def _differing(ours: Settings, theirs: Settings) -> Iterator[str]:
    """Yield the paths whose values differ. Fields of components of different kinds are not compared."""
    for path in dict.fromkeys((*ours, *theirs)):
        if not _equal(ours.get(path), theirs.get(path)) and not _inside_other_kind(path, ours, theirs):
            yield path


def _inside_other_kind(path: str, ours: Settings, theirs: Settings) -> bool:
    parts = path.split(".")
    kinds = (".".join((*parts[:n], "kind")) for n in range(1, len(parts)))
    return any(ours.get(kind) != theirs.get(kind) for kind in kinds if kind != path)


def _equal(ours: Any, theirs: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (ours, theirs))
    return math.isclose(ours, theirs, rel_tol=1e-6) if numbers else ours == theirs
