"""Studies that lead from one preset to another, with one arm for each difference."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.core.config import Component, Config, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, check_known
from taetpu.core.registry import slots
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import ModelConfig
from taetpu.nn.mask import SlidingConfig
from taetpu.spec.document import format_yaml
from taetpu.spec.presets import PRESETS, expand_preset

STUDY = """\
# Which of the differences between {start} and {end} matter?
#
#   taetpu plan {file}         show arms, changes, parameters and time without training
#   taetpu run {file}          train missing runs, then report; run it again to resume
#
# The baseline is {start} ({start_about}) at this size. Each arm takes one property of {end}
# ({end_about}), and the arm with-all takes all of them.
study: {name}

base:
  task:
    kind: text
    source: python-docs          # or a text file or folder beside this file, or a name: taetpu catalog corpus
    tokenizer: {{kind: char}}
    seq_len: {seq_len}
  model: {{preset: {start}, dim: {dim}, num_layers: {num_layers}}}
  train:
    steps: 1000
    batch_size: 16
    optimizer: {{kind: adamw, lr: 3e-3}}
    schedule: {{kind: cosine, warmup: 100}}

seeds: 5

add_one_in:
{arms}

measure: {{primary: val/loss, direction: min, equivalence: 0.01}}
"""

LEFT_OUT = """\
  # {path} (plain or unit-offset) is left out: without weight decay of norms, both train the same function."""


def preset_model(name: str, dim: int, num_layers: int) -> ModelConfig:
    """Return the model of a preset.

    Raises:
        UserError: If there is no such preset.
    """
    check_known(name, PRESETS, f"unknown preset {name!r}")
    return load_config(ModelConfig, expand_preset({"preset": name, "dim": dim, "num_layers": num_layers}))


def differences(start: ModelConfig, end: ModelConfig) -> dict[str, dict[str, Any]]:
    """Return the changes that lead from one model to another, by name, each as overrides by path.

    A change is another kind in a slot, or another value of a field in a slot whose kind is the same, in all layers.
    Changes of `same_function` are left out.
    """
    return {
        _part_name(path): _overrides(path, values, separate)
        for path, values, separate in _all_changes(start, end)
        if not _is_same_function(path, values)
    }


def same_function(start: ModelConfig, end: ModelConfig) -> list[str]:
    """Return the paths of the changes between two models that do not change what is computed and trained.

    A norm's weight and its offset from 1 start from the same factor and have the same gradient. They differ only if
    norms have weight decay, which they do not have by default.
    """
    return [f"model.{path}" for path, values, _ in _all_changes(start, end) if _is_same_function(path, values)]


def _is_same_function(path: str, levels: Sequence[tuple[Any, Any]]) -> bool:
    choices = {value for pair in levels for value in pair if isinstance(value, str)}
    return path.endswith("norm.weight") and choices == {"plain", "unit-offset"}


def _all_changes(
    start: ModelConfig, end: ModelConfig
) -> Iterator[tuple[str, Sequence[tuple[Any, Any]], Sequence[bool]]]:
    """Yield the path of each change, its values (see `_changes`), and whether each layer has its own component."""
    first, second = start.resolve(), end.resolve()
    for slot in ModelConfig.model_fields:
        if slot in ("dim", "num_layers", "layers"):
            continue
        levels = [(getattr(start, slot), getattr(end, slot))]
        if slot in LayerConfig.model_fields:
            levels += [(getattr(old, slot), getattr(new, slot))
                       for old, new in zip(first.layers, second.layers, strict=True)]  # fmt: skip
        separate = [slot in start.layers.get(i, {}) for i in range(start.num_layers)]
        for path, values in _changes(levels, slot):
            yield path, values, separate


def _part_name(path: str) -> str:
    """Return the name of a part: that of the slot or, for a field, those of its component and the field."""
    *above, last = path.split(".")
    return last if last in slots() or not above else f"{above[-1]}-{last}"


def _changes(levels: Sequence[tuple[Any, Any]], path: str) -> Iterator[tuple[str, Sequence[tuple[Any, Any]]]]:
    """Yield the path of each difference, with the old and the new value of the model and of each layer."""
    if all(old == new for old, new in levels):
        return
    kinds = {getattr(value, "kind", None) for pair in levels for value in pair}
    if len(kinds) == 1 and None not in kinds:
        for name in type(levels[0][0]).model_fields:
            yield from _changes([(getattr(old, name), getattr(new, name)) for old, new in levels], f"{path}.{name}")
    else:
        yield path, levels


def _overrides(path: str, levels: Sequence[tuple[Any, Any]], separate: Sequence[bool]) -> dict[str, Any]:
    """Return the overrides of the model and, where they are needed, of single layers.

    Args:
        path: The path of the setting, from the model on.
        levels: The old and the new value of the model, and of each layer if layers have the setting.
        separate: Whether each layer of the baseline has its own component in the slot.
    """
    (old, new), *layers = levels
    overrides = {f"model.{path}": setting(new)} if old != new else {}
    for i, (before, after) in enumerate(layers):
        if after != (before if separate[i] else new):
            overrides[f"model.layers.{i}.{path}"] = setting(after)
    return overrides


def setting(value: Any) -> Any:
    """Return the value of a setting as the data of a study file, without fields that have their default."""
    if isinstance(value, Component):
        fields = changed_fields(value)
        return {"kind": value.kind, **fields} if fields else value.kind
    if isinstance(value, Mapping):
        return {name: setting(item) for name, item in value.items()}
    return changed_fields(value) if isinstance(value, Config) else to_data(value)


def changed_fields(config: Config) -> dict[str, Any]:
    """Return the fields of a config that differ from their default, as the data of a study file."""
    return {
        name: setting(getattr(config, name))
        for name, info in type(config).model_fields.items()
        if info.is_required() or getattr(config, name) != info.get_default(call_default_factory=True)
    }


def causal_presets() -> list[str]:
    """Return the presets that predict next tokens."""
    return [name for name in PRESETS if preset_model(name, 64, 2).resolve().predicts_next]


def write_study(name: str, start: str, end: str, dim: int, num_layers: int) -> str:
    """Return the text of a study with an arm for each difference between two presets, and an arm with all.

    Raises:
        UserError: If a preset is unknown or does not predict next tokens, or the presets do not differ at this size.
    """
    first, second = (preset_model(preset, dim, num_layers) for preset in (start, end))
    for option, preset, model in (("--from", start, first), ("--to", end, second)):
        if not model.resolve().predicts_next:
            problem = f"{preset} sees later tokens, and the study predicts next tokens"
            raise UserError(problem, path=(option,), remedy=f"Use two of: {', '.join(causal_presets())}.")
    parts = differences(first, second)
    if not parts:
        raise UserError(f"{start} and {end} do not differ", remedy=f"Use two of: {', '.join(causal_presets())}.")
    lines = [line for part, overrides in parts.items() for line in _part_lines(part, overrides)]
    lines += [LEFT_OUT.format(path=path) for path in same_function(first, second)]
    arms = "\n".join(lines)
    return STUDY.format(
        name=name, file=f"{name}.yaml", start=start, end=end, dim=dim, num_layers=num_layers, arms=arms,
        start_about=PRESETS[start].about, end_about=PRESETS[end].about, seq_len=_seq_len(first, second),
    )  # fmt: skip


def _seq_len(*models: ModelConfig) -> int:
    """Return a power of two above the widths of the models' windows, in which each window hides positions."""
    masks = [layer.typed_mixer.effective_mask for model in models for layer in model.resolve().layers]
    widest = max((mask.width or 0 for mask in masks if isinstance(mask, SlidingConfig)), default=0)
    return max(64, 2 ** widest.bit_length())


def _part_lines(part: str, overrides: dict[str, Any]) -> list[str]:
    """Return the lines of a study file that define a part."""
    if len(overrides) == 1:
        return [f"  {part}: {format_yaml(overrides)}"]
    return [f"  {part}:", *(f"    {path}: {format_yaml(value)}" for path, value in overrides.items())]
