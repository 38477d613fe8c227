"""Studies that lead from one preset to another, with one arm for each difference."""

from collections.abc import Iterator
from typing import Any

from taetpu.core.config import Component, slot_of, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, suggest
from taetpu.nn.lm import ModelConfig
from taetpu.spec.document import format_yaml
from taetpu.spec.presets import PRESETS, expand_preset
from taetpu.spec.unresolved_arms import short_paths

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
    source: python-docs          # or a path to a text file or folder, relative to this file
    tokenizer: {{kind: char}}
    seq_len: 64
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


def preset_model(name: str, dim: int, num_layers: int) -> ModelConfig:
    """Return the model of a preset.

    Raises:
        UserError: If there is no such preset.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}", remedy=suggest(name, PRESETS))
    return load_config(ModelConfig, expand_preset({"preset": name, "dim": dim, "num_layers": num_layers}))


def differences(start: ModelConfig, end: ModelConfig) -> dict[str, dict[str, Any]]:
    """Return the changes that lead from one model to another, by name, each as overrides by path.

    A change is another kind in a slot, or another value of a field in a slot whose kind is the same.
    """
    changes = dict(_changes(start, end, "model."))
    names = short_paths(list(changes))
    return {names[path]: {path: value} for path, value in changes.items()}


def _changes(start: Any, end: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the new value of each difference between two configs of one class."""
    for name in type(start).model_fields:
        old, new = getattr(start, name), getattr(end, name)
        path = f"{before}{name}"
        if old == new:
            continue
        if isinstance(old, Component) and isinstance(new, Component) and old.kind == new.kind:
            yield from _changes(old, new, f"{path}.")
        else:
            yield path, changed_settings(new) if isinstance(new, Component) else to_data(new)


def changed_settings(component: Component) -> Any:
    """Return a component as the data of a study file: its kind, and the fields that differ from their default."""
    fields: dict[str, Any] = {}
    for name, info in type(component).model_fields.items():
        value = getattr(component, name)
        if info.is_required() or value != info.get_default(call_default_factory=True):
            filled = isinstance(value, Component) and slot_of(type(component), name) is not None
            fields[name] = changed_settings(value) if filled else to_data(value)
    return {"kind": component.kind, **fields} if fields else component.kind


def write_study(name: str, start: str, end: str, dim: int, num_layers: int) -> str:
    """Return the text of a study with an arm for each difference between two presets, and an arm with all.

    Raises:
        UserError: If a preset is unknown, or the presets do not differ at this size.
    """
    first, second = (preset_model(one, dim, num_layers) for one in (start, end))
    parts = differences(first, second)
    if not parts:
        raise UserError(f"{start} and {end} do not differ", remedy=f"Use two of: {', '.join(PRESETS)}.")
    arms = "\n".join(f"  {part}: {format_yaml(overrides)}" for part, overrides in parts.items())
    return STUDY.format(
        name=name, file=f"{name}.yaml", start=start, end=end, dim=dim, num_layers=num_layers, arms=arms,
        start_about=PRESETS[start].about, end_about=PRESETS[end].about,
    )  # fmt: skip
