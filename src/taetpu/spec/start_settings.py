"""The settings of a stored model as those of a baseline: `model: {start: FOLDER}`.

They are expanded when a study is loaded, like presets. No setting is stored for `start`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig, ModelConfig
from taetpu.spec.preset_differences import changed_fields, setting
from taetpu.spec.presets import Settings, replace_settings
from taetpu.spec.start import StartConfig, StoredModel

PLACE = ("model", "start")


def expand_start(base: Mapping[str, Any], read: Callable[[StartConfig], StoredModel]) -> Settings:
    """Return a baseline's data with the settings of the model in `model.start`, if it names one.

    The model gets the settings of the stored model, and those beside `start` replace them. Unless they are written,
    `train.start` names the model, and the tokenizer of the task is that of the model.

    Args:
        base: The baseline's data.
        read: A function that reads the stored model. Its errors have paths relative to `start`.

    Raises:
        UserError: If the model cannot be read, or `model.start` contradicts other settings. The path is relative to
            the baseline.
    """
    model = base.get("model")
    if not isinstance(model, Mapping) or "start" not in model:
        return dict(base)
    if "preset" in model:
        problem = f"the settings of the model are those of a preset, {model['preset']!r}, and of a stored model"
        raise UserError(problem, path=PLACE, remedy="Remove preset or start.")
    named = model["start"]
    start = load_config(StartConfig, {"folder": named} if isinstance(named, str) else named, PLACE)
    train, task = base.get("train"), base.get("task")
    if isinstance(train, Mapping) and train.get("start") not in (None, "none"):
        problem = f"both model.start and train.start name a model, {start.folder!r} and {train['start']!r}"
        remedy = "Remove train.start, or set it to none to draw the parameters of the baseline."
        raise UserError(problem, path=("train", "start"), remedy=remedy)
    with locate_errors(*PLACE):
        stored = read(start)
        settings = model_settings(stored.config)
    place = {name: value for name in ("folder", "revision") if (value := getattr(start, name)) is not None}
    expanded = {**base, "model": _with_settings(settings, model)}
    if isinstance(train, Mapping) and "start" not in train:
        expanded["train"] = {**train, "start": {**place, "vocabulary": start.vocabulary}}
    if stored.tokenizer is not None and start.vocabulary == "loaded" and isinstance(task, Mapping):
        expanded["task"] = _with_tokenizer(task, place)
    return expanded


def _with_settings(settings: Settings, model: Mapping[str, Any]) -> Settings:
    """Return the settings of a stored model, changed by those that are written beside `start`."""
    written = {name: value for name, value in model.items() if name not in ("start", "layers")}
    made = replace_settings(settings, written)
    if "layers" not in model:
        return made
    layers = {**made.get("layers", {})}
    if not isinstance(more := model["layers"], Mapping):
        return {**made, "layers": more}  # refused with the model
    for where, changed in more.items():  # later entries take precedence
        layers[where] = {**layers.pop(where, {}), **changed} if isinstance(changed, Mapping) else changed
    return {**made, "layers": layers}


def _with_tokenizer(task: Mapping[str, Any], place: Mapping[str, str]) -> Settings:
    """Return a task with the tokenizer of the model at a place, if the task has one and does not set another."""
    written = task.get("tokenizer", "start")
    fields = dict(written) if isinstance(written, Mapping) else {"kind": written}
    cls = kinds("task").get(str(task.get("kind")))
    if cls is None or "tokenizer" not in cls.model_fields or fields.get("kind") != "start" or "folder" in fields:
        return dict(task)
    return {**task, "tokenizer": {**fields, **place}}


def model_settings(config: LMConfig) -> Settings:
    """Return the shortest data of a `ModelConfig` with the given resolved config.

    A setting of most layers is that of the model, unless the model has one itself, and the others are in `layers`.
    """
    slots = [name for name in LayerConfig.model_fields if name in ModelConfig.model_fields]
    usual = {name: getattr(config, name) for name in slots if name in LMConfig.model_fields}
    for name in slots:
        values = Counter(getattr(layer, name) for layer in config.layers)
        usual.setdefault(name, values.most_common(1)[0][0])
    layers: dict[int | str, Settings] = {}
    for number, layer in enumerate(config.layers):
        if layer.same_as is not None:
            layers[number] = {"same_as": layer.same_as}
            continue
        changed = {name: setting(getattr(layer, name)) for name in slots if getattr(layer, name) != usual[name]}
        layers |= {number: changed | ({"drop": [*layer.drop]} if layer.drop else {})} if changed or layer.drop else {}
    fixed = {name: getattr(config, name) for name in LMConfig.model_fields if name != "layers"}
    fields = changed_fields(ModelConfig(**{**fixed, **usual, "num_layers": len(config.layers)}))
    return {**fields, **({"layers": layers} if layers else {})}
