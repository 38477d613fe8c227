"""The requirements of each slot for its config classes: the base class, the fields, and the methods' arguments."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import FunctionType
from typing import Any

from pydantic import PydanticUserError, ValidationError

from taetpu.core.config import Component, to_data
from taetpu.core.errors import UserError
from taetpu.core.registry import slot_base


@dataclass(frozen=True)
class Declaration:
    """The requirements of a slot for its config classes.

    Attributes:
        base: The class to extend, as `module.Class`. Its methods define the arguments of each call.
        methods: Further required methods by name, each as a function that takes the arguments of the call.
        fields: Further required fields by name, with their meaning.
        optional: Methods that a class may define, like `methods`.
        offers: A class that may be extended instead of `base`; its methods are then required too. Empty: none.
    """

    base: str = "taetpu.core.config.Component"
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    offers: str = ""


INIT = {"init": lambda self, dims, *, key: None}
DECLARATIONS: dict[str, Declaration] = {
    **dict.fromkeys(
        ("ffn", "residual", "short_conv", "after", "scores", "embedding", "stem", "readout", "logits"),
        Declaration(methods=INIT),
    ),
    "mixer": Declaration(
        methods={"init": lambda self, dims, position, *, key: None}, offers="taetpu.nn.mixer_base.MixerConfig"
    ),
    "norm": Declaration(methods=INIT, fields={"placement": "'pre', 'post', 'sandwich' or 'output'"}),
    "order": Declaration("taetpu.nn.order.OrderConfig"),
    "layer_dropout": Declaration("taetpu.nn.layer_dropout.LayerDropoutConfig"),
    "adapter": Declaration("taetpu.nn.adapter.AdapterConfig"),
    "mask": Declaration("taetpu.nn.mask.MaskConfig"),
    **dict.fromkeys(
        ("qk_norm", "normalizer", "gate"), Declaration(methods={"init": lambda self, dims, heads, *, key: None})
    ),
    "values": Declaration("taetpu.nn.values.ValuesConfig"),
    "head": Declaration("taetpu.nn.head.HeadConfig"),
    "position": Declaration("taetpu.nn.position.PositionConfig"),
    "rope_scaling": Declaration("taetpu.nn.rope_scaling.RopeScalingConfig"),
    "init": Declaration(methods={"draw": lambda self, dims, role, shape, *, key: None}),
    "optimizer": Declaration(
        methods={"transform": lambda self, lr, decayed: None},
        fields={"lr": "the peak learning rate of the schedule"},
        optional={
            "evaluated": lambda self, state, params: None,
            "update_rule": lambda self, lr, parameters: None,
        },
    ),
    "schedule": Declaration(methods={"lr": lambda self, step, steps, peak: None}),
    "stop": Declaration("taetpu.optim.stopping.StopConfig"),
    "evaluate": Declaration("taetpu.optim.evaluated.EvaluatedConfig"),
    "objective": Declaration("taetpu.optim.objectives.Objective"),
    "hook": Declaration("taetpu.optim.hooks.Hook"),
    "metric": Declaration("taetpu.optim.metrics.Metric"),
    "eval_metric": Declaration("taetpu.optim.eval_metrics.EvalMetric"),
    "task": Declaration("taetpu.data.base.Task"),
    "tokenizer": Declaration("taetpu.data.tokenizers.base.TokenizerConfig"),
    "tracker": Declaration("taetpu.trackers.base.Tracker"),
}


def check_declaration(cls: type[Component]) -> None:
    """Check that a registered config class meets the requirements of its slot.

    Raises:
        UserError: if the class has a wrong base class, or lacks a field or method; if a method takes other arguments;
            if an annotation cannot be resolved; or if a default is rejected by its field or cannot be written in a
            study file.
    """
    asked = DECLARATIONS.get(cls.slot, Declaration())
    base = slot_base(cls.slot) or _import(asked.base)
    if not issubclass(cls, base):
        problem = f"a {cls.slot} must extend {base.__name__}, but {cls.__name__} does not"
        raise _error(
            cls, problem, f"Define class {cls.__name__}({base.__name__}), with {base.__name__} from {base.__module__}."
        )
    if asked.offers and issubclass(cls, offered := _import(asked.offers)):
        base = offered
    for name, meaning in asked.fields.items():
        if name not in cls.model_fields and not hasattr(cls, name):
            raise _error(cls, f"{cls.__name__} has no field {name} ({meaning})", f"Add the field {name}.")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        problem = f"{cls.__name__} does not define {', '.join(missing)}"
        raise _error(cls, problem, f"Define everything that {base.__name__} requires.")
    inherited = {} if base is Component else {n: f for n, f in vars(base).items() if isinstance(f, FunctionType)}
    public = {name: fn for name, fn in inherited.items() if not name.startswith("_")}
    optional = {name: prototype for name, prototype in asked.optional.items() if hasattr(cls, name)}
    for name, prototype in {"check": Component.check, **public, **asked.methods, **optional}.items():
        _refuse_arguments(cls, name, prototype)
    _refuse_defaults(cls)


def _import(name: str) -> type[Component]:
    """Return a class by its name, as `module.Class`."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _refuse_arguments(cls: type[Component], name: str, prototype: Callable[..., Any]) -> None:
    """Raise if a method does not accept the arguments with which its slot calls it."""
    method, asked = getattr(cls, name, None), inspect.signature(prototype)
    untyped = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in asked.parameters.values()]
    shown = f"def {name}{inspect.Signature(untyped)}"
    if not callable(method):
        raise _error(cls, f"{cls.__name__} has no method {name}", f"Define `{shown}`.")
    bound = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    given = list(asked.parameters.values())[1 if bound else 0 :]
    named = {parameter.name: None for parameter in given if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind(*[None] * (len(given) - len(named)), **named)
    except TypeError as error:
        problem = f"{cls.__name__}.{name} does not accept the arguments of its slot's calls: {error}"
        raise _error(method, problem, f"Define `{shown}`.") from None


def _refuse_defaults(cls: type[Component]) -> None:
    """Raise if a field rejects its default, such as NaN, or if a study file cannot contain the default."""
    known: dict[str, Any] = {}
    try:
        fields = cls.model_fields
        known = {n: f.get_default(call_default_factory=True) for n, f in fields.items() if not f.is_required()}
        cls.model_validate(known)
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"] and detail["loc"][0] in known and detail["type"] != "missing":
                name, what = detail["loc"][0], detail["msg"].removeprefix("Input ")
                problem = f"{cls.__name__}.{name}: the default {known[str(name)]!r} is not allowed: {what}"
                raise _error(cls, problem, "Use a default that the field's type allows, or no default.") from None
    except PydanticUserError as error:
        problem = f"{cls.__name__}: {str(error).splitlines()[0]}"
        raise _error(cls, problem, "Correct the annotations of the class's fields.") from None
    except Exception:  # a cross-field check failed; defaults need not pass such a check
        pass
    for name, value in known.items():
        try:
            json.dumps(to_data(value), allow_nan=False)
        except (TypeError, ValueError):
            kind = type(value).__name__
            problem = f"{cls.__name__}.{name}: a default of type {kind} cannot be written in a study file"
            raise _error(cls, problem, "Use numbers, text, booleans, lists or None.") from None


def _error(where: Any, problem: str, remedy: str) -> UserError:
    """Return an error with the file and line of a class or method."""
    try:
        file, line = inspect.getsourcefile(inspect.unwrap(where)), inspect.getsourcelines(inspect.unwrap(where))[1]
    except (OSError, TypeError):
        file = line = None
    return UserError(problem, file=file, line=line, remedy=remedy or None)
