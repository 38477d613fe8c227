"""Random models whose slots hold kinds of the registry, and the properties that hold for each of them."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from tests.testing.test_every_kind import SETTINGS

from taetpu.core.config import Component, Config, iter_components, slot_of, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.cache import empty_cache
from taetpu.nn.lm import LMConfig, ModelConfig
from taetpu.spec.kind_examples import is_default, slot_path
from taetpu.testing import in_model
from taetpu.testing.report import CheckFailed, CheckNote
from taetpu.testing.tiny import BATCH, DIM, SEQ, VOCAB, stack_trees
from taetpu.testing.tiny_model import LOOP, TinyModel

SLOTS = tuple(slot for slot in BUILTIN_MODULES if slot_path(slot).startswith("model."))
"""The slots of the model and of its components."""
LAYER_SLOTS = tuple(slot for slot in SLOTS if slot in LayerConfig.model_fields)
TINY = {"chunk": 3}
"""Values of fields, by name, with which tiny models use all parts of a component."""


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Return the settings of a tiny model that differs from the default in two to four slots."""
    chosen = draw(st.lists(st.sampled_from(SLOTS), min_size=2, max_size=4, unique=True))
    model: dict[str, Any] = {"dim": DIM, "num_layers": draw(st.sampled_from([2, 2, 2, 3])), "bias": draw(st.booleans())}
    for slot in SLOTS:  # `mixer` and `position` precede the slots of their kinds
        if slot not in chosen or not has_slot(model, slot):
            continue
        cls = draw(st.sampled_from([cls for cls in kinds(slot).values() if not is_default(cls)]))
        examples = {path: value for path, value in cls.example.items() if "." in path} if draw(st.booleans()) else {}
        own = "heads" if slot == "head" else slot_path(slot).removeprefix("model.")
        value = draw(component(cls))
        for path, one in {own: {cls.kind: value} if slot == "head" else value, **examples}.items():
            assign(model, path.removeprefix("model."), one)
    return draw(layered(model))


@st.composite
def component(draw: st.DrawFn, cls: type[Component]) -> dict[str, Any]:
    """Return settings of a kind: those that it requires, and random values of its choices."""
    found: dict[str, Any] = {"kind": cls.kind, **{name: v for name, v in cls.example.items() if "." not in name}}
    found |= {name: value for name, value in TINY.items() if name in cls.model_fields}
    found |= SETTINGS.get(cls.kind, {})
    for name, info in cls.model_fields.items():
        options = choices(info.annotation)
        if options and slot_of(cls, name) is None and draw(st.integers(0, 3)) == 0:
            found[name] = draw(st.sampled_from(options))
    return found


def choices(annotation: Any) -> list[Any]:
    """Return the values of a field that is a choice: a boolean or some words; empty for other fields."""
    if annotation is bool:
        return [False, True]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def has_slot(model: Mapping[str, Any], slot: str) -> bool:
    """Return whether a model has a slot: not if, for example, its mixer has no `mask`."""
    *above, name = slot_path(slot).removeprefix("model.").split(".")
    cls: type[Config] = ModelConfig
    for part in above:
        default = cls.model_fields[part].get_default(call_default_factory=True)
        cls = kinds(part)[model[part]["kind"]] if part in model else type(default)
    return name in cls.model_fields


def assign(model: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in the settings of a model."""
    *above, name = path.split(".")
    for part in above:
        default = ModelConfig.model_fields[part].get_default(call_default_factory=True)
        model = model.setdefault(part, {"kind": default.kind})
    model[name] = value


@st.composite
def layered(draw: st.DrawFn, model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, with some of them moved to one layer, or with a layer that shares parameters."""
    how = draw(st.sampled_from(["all", "all", "all", "one", "shared"]))
    layer = draw(st.integers(0, model["num_layers"] - 1))
    if how == "shared" and layer:
        return {**model, "layers": {layer: {"same_as": layer - 1}}}
    movable = [slot for slot in LAYER_SLOTS if slot in model]
    if how == "one" and movable:
        slot = draw(st.sampled_from(movable))
        return {**{k: v for k, v in model.items() if k != slot}, "layers": {layer: {slot: model[slot]}}}
    return model


# --- properties ------------------------------------------------------------------------------------------------------


def admit(model: Mapping[str, Any]) -> LMConfig | None:
    """Return the config of a model; None if it is refused. A refusal has a remedy."""
    try:
        config = load_config(ModelConfig, model).resolve()
        config.check(VOCAB, SEQ)
    except UserError as error:
        for one in error.all_errors:
            assert one.remedy, f"this refusal has no remedy: {one}\n{model}"
        return None
    return config


def is_causal(config: LMConfig) -> bool:
    """Return whether no position depends on a later one."""
    return all(getattr(part, "causal", True) for part in iter_components(config))


def find_faults(config: LMConfig, *, training: bool = True) -> dict[str, str]:
    """Return the properties that a model violates, each with a message; without `training`, those of evaluation."""
    faults: dict[str, str] = {}
    tiny = TinyModel(config)
    causal, step = is_causal(config), tiny.half_step if training else None
    checks: dict[str, tuple[Any, ...]] = {"bfloat16": (in_model.check_bfloat16,)} if training else {}
    if causal:
        checks["causality"] = in_model.check_causality, step
    checks["sequences"] = in_model.check_sequences, step
    checks["packs"] = (check_packed_logits,)
    checks["layers"] = (in_model.check_layers,)
    checks["sites"] = (in_model.check_sites,)
    if causal:
        checks["padding"] = (in_model.check_padding,)
    if causal and has_cache(tiny):
        checks["cache"] = (in_model.check_cache,)
        checks["cache padding"] = (in_model.check_padded_cache,)
    for name, (check, *more) in checks.items():
        try:
            check(None, tiny, *more)
        except (CheckFailed, CheckNote) as failure:
            faults[name] = str(failure)
        except Exception as error:  # all properties are reported together
            faults[name] = f"{type(error).__name__}: {error}"
    return faults


def check_packed_logits(component: Any, tiny: TinyModel) -> str:
    """Check that the logits of two packed runs, with layers in a loop, agree with those of the same runs alone."""
    batches = jnp.stack([tiny.batch, (tiny.batch + 4) % VOCAB])
    packed = jit_once(jax.vmap(lambda model, batch: LOOP.apply(model)(batch)))(stack_trees(*tiny.models), batches)
    pairs = zip(tiny.models, batches, strict=True)
    alone = stack_trees(*(tiny.forward(model, batch) for model, batch in pairs))
    return in_model.check_agreement(component, packed, alone)


def has_cache(tiny: TinyModel) -> bool:
    """Return whether all parts of a model offer a cache."""
    try:
        empty_cache(tiny.models[0], BATCH, SEQ)
    except UserError:
        return False
    return True


def check_combination(model: Mapping[str, Any], *, training: bool = True) -> bool:
    """Check a model as `find_faults` does, and return whether it is admitted. A failure shows its settings."""
    config = admit(model)
    if config is None:
        return False
    faults = find_faults(config, training=training)
    listed = "\n".join(f"  {name}: {message}" for name, message in faults.items())
    assert not faults, f"this model violates {len(faults)} properties:\n{listed}\n{plain(model)}"
    return True


def plain(model: Mapping[str, Any]) -> Any:
    """Return settings as plain data."""
    return to_data(dict(model))
