"""Fields at their default leave a run's identity, so a default may only change together with the schema.

`defaults.json` holds the defaults of every config class that enters an identity, by schema. New fields are added by

    python -m tests.spec.test_defaults

which refuses to change what is recorded. After `SCHEMA` was raised, it records all defaults under the new number.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

from taetpu.core.config import Component, Config, config_class_of, slot_of, to_data
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, SCHEMA, canonical_json
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig, ModelConfig
from taetpu.optim.optimizers.adam import AdamW
from taetpu.spec.study_config import ResolvedConfig

STORED = Path(__file__).with_name("defaults.json")
Defaults = Mapping[str, Mapping[str, Any]]


def classes(cls: type[Config] = ResolvedConfig) -> Iterator[type[Config]]:
    """Yield all classes of the package whose fields are part of an identity."""
    yield cls
    for name in entering(cls):
        inner, slot = config_class_of(cls, name), slot_of(cls, name)
        if inner is not None:
            yield from classes(inner)
        for kind in kinds(slot.name).values() if slot else ():
            if not kind.plugin:
                yield from classes(kind)


def entering(cls: type[Config]) -> list[str]:
    beside = FIELDS_OUTSIDE_IDENTITY if cls.__name__ == "TrainConfig" else ()
    return [name for name in cls.model_fields if name not in beside]


def current() -> dict[str, dict[str, Any]]:
    """Return `{class: {field: default}}`. A required field has the default "required"."""
    found = {}
    for cls in classes():
        name = f"{cls.slot}/{cls.kind}" if issubclass(cls, Component) else cls.__name__
        fields = {field: cls.model_fields[field] for field in entering(cls)}
        found[name] = {
            field: "required" if info.is_required() else to_data(info.get_default(call_default_factory=True))
            for field, info in fields.items()
        }
    return found


def extends(old: Any, new: Any) -> bool:
    """Return whether a default is unchanged, except that components in it may have gained fields.

    A required field may get the default None: no stored run has this value.
    """
    if old == "required" and new is None:
        return True
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and extends(value, new[name]) for name, value in old.items())
    return canonical_json(old) == canonical_json(new)


def changed(stored: Defaults, now: Defaults) -> list[str]:
    """Return the fields whose recorded default has changed, and new required fields."""
    found = []
    for cls, fields in stored.items():
        found += [f"{cls}.{name}" for name in fields if not extends(fields[name], now.get(cls, {}).get(name, "gone"))]
        found += [f"{cls}.{name}" for name, own in now.get(cls, {}).items() if name not in fields and own == "required"]
    return found


def recorded() -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(STORED.read_text())


def test_no_default_changes_without_a_new_schema() -> None:
    stored = recorded()[str(SCHEMA)]
    assert changed(stored, current()) == [], "raise SCHEMA in core/identity.py, then record the defaults anew"
    assert stored == current(), "a field or kind is new: python -m tests.spec.test_defaults"


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["optimizer/adamw"].update(lr=2e-3),
        lambda d: d["optimizer/adamw"].pop("b1"),
        lambda d: d["LayerConfig"].update(ffn={"kind": "none"}),
        lambda d: d["task/text"].update(seq_len=128),
        lambda d: d["optimizer/adamw"].update(lr="required"),
        lambda d: d["norm/layer"].update(new="required"),
        lambda d: d.pop("norm/rms"),
    ],
)
def test_a_changed_default_is_found(edit) -> None:
    now = current()
    edit(now)
    assert len(changed(recorded()[str(SCHEMA)], now)) >= 1


def test_a_new_field_with_a_default_needs_no_new_schema() -> None:
    now = current()
    now["norm/layer"]["new"] = None
    now["norm/newer"] = {"eps": "required"}
    assert changed(recorded()[str(SCHEMA)], now) == []


def test_written_and_resolved_configs_have_the_same_defaults() -> None:
    written = {name: info.default for name, info in ModelConfig.model_fields.items()}
    for cls in (LMConfig, LayerConfig):
        shared = {name: info.default for name, info in cls.model_fields.items() if name in written}
        assert shared == {name: written[name] for name in shared}


def test_an_explicit_default_loads_as_the_same_value() -> None:
    """Otherwise, an explicit default would change the identity, for example `val: 0` with a default of 0.0."""
    for cls in {*classes(), AdamW}:
        for name, info in cls.model_fields.items():
            if not info.is_required() and slot_of(cls, name) is None and config_class_of(cls, name) is None:
                default = info.get_default(call_default_factory=True)
                given = _adapter(info).validate_python(default)
                assert canonical_json(to_data(given)) == canonical_json(to_data(default)), f"{cls.__name__}.{name}"


def _adapter(info: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[info.annotation, *info.metadata, info])


def record() -> None:
    stored, now = recorded() if STORED.exists() else {}, current()
    if wrong := changed(stored.get(str(SCHEMA), {}), now):
        raise SystemExit(f"not recorded: {', '.join(wrong)} changed; raise SCHEMA in core/identity.py first")
    stored[str(SCHEMA)] = now
    STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
