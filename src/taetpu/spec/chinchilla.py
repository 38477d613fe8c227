"""`ladder: {chinchilla: [0.5, 1, 2], dial: depth}`: sizes and steps of a ladder from one number for each rung.

A number is a factor on the dial of the baseline. With `dial: depth`, it multiplies the number of layers and the width,
so that their ratio stays; with `dial: width`, the width alone. Every rung is trained on the same number of tokens per
parameter: that of the baseline or, if the baseline sets no `train.steps`, 20, which is about compute-optimal (Hoffmann
et al. 2022, "Training compute-optimal large language models"). Parameters include embeddings.

The learning rate stays with muP (`train.optimizer.base_dim`), which scales it itself. Otherwise, it is divided by the
square root of the factor on the width, as in Vaswani et al. 2017 ("Attention is all you need", equation 3).
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import jax

from taetpu.core.errors import KeyPath, UserError, locate_errors, suggest
from taetpu.core.keys import root_key
from taetpu.core.tree import count_elements
from taetpu.data.base import Source
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import build_model
from taetpu.spec.document import format_value
from taetpu.spec.overrides import resolve_overrides
from taetpu.spec.repeats import CHINCHILLA
from taetpu.spec.resolved_study import Sources
from taetpu.spec.study_config import ResolvedConfig
from taetpu.spec.study_spec import StudySpec
from taetpu.spec.train_config import MAX_STEPS

DIAL = "dial"
DIALS = ("depth", "width")
TOKENS_PER_PARAMETER = 20
DIGITS = 3
"""Number of significant digits of a learning rate."""
EXAMPLE = "{chinchilla: [0.5, 1, 2], dial: depth}"

Resolve = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the baseline's data, given that of the study file: with presets, start models and `--set` options."""


def with_sizes(
    spec: StudySpec, data: dict[str, Any], resolve: Resolve, sources: Sources
) -> tuple[StudySpec, dict[str, Any]]:
    """Return a study with the settings of each rung of `ladder.chinchilla`, and its baseline with a number of steps.

    A study without it is returned unchanged. Otherwise, the baseline's task is prepared to count parameters.

    Args:
        spec: the study file.
        data: the baseline's data as written in the study file.
        resolve: see `Resolve`.
        sources: the prepared tasks.

    Raises:
        UserError: If the ladder is invalid, or a size is not an integer.
    """
    if CHINCHILLA not in spec.ladder and DIAL not in spec.ladder:
        return spec, data
    factors = _factors(spec)
    train = data.get("train")
    train = train if isinstance(train, Mapping) else {}
    for name, remedy in (("epochs", "Set steps, or neither."), ("steps", "Set steps above 0, or leave them out.")):
        if name in train and (name == "epochs" or train[name] == 0):
            problem = f"{name}={train[name]}: ladder.chinchilla sets steps from tokens per parameter"
            raise UserError(problem, path=("base", "train", name), remedy=remedy)
    asked = data if "steps" in train else {**data, "train": {**train, "steps": MAX_STEPS}}
    base = resolve(asked)
    first = resolve_overrides(base, {})
    with locate_errors("base", "task"):
        source = sources.prepare(first)
    tokens = first.train.batch_size * source.seq_len
    written = first.train.steps or 1
    ratio = written * tokens / count_parameters(first, source)
    if written == MAX_STEPS:
        ratio = TOKENS_PER_PARAMETER
        written = max(1, round(ratio * count_parameters(first, source) / tokens))
        data = {**data, "train": {**train, "steps": written}}
    rungs = []
    for number, factor in enumerate(factors):
        place = ("ladder", CHINCHILLA, number)
        changes = _changes(first, spec.ladder[DIAL], factor, place)
        try:
            sized = resolve_overrides(base, changes)
            sized.check()
            parameters = count_parameters(sized, source)
        except UserError as error:
            problem = f"{format_value(float(factor))} times the baseline is not a valid model: {error.problem}"
            raise UserError(problem, path=place, remedy=error.remedy) from None
        steps = max(1, round(ratio * parameters / tokens))
        rungs.append({**changes, "train.steps": written if factor == 1 else steps})
    lists = {path: [rung[path] for rung in rungs] for path in rungs[0]}
    return spec.model_copy(update={"ladder": {CHINCHILLA: list(map(float, factors)), **lists}}), data


def _factors(spec: StudySpec) -> list[Fraction]:
    """Return the factors on the dial of the baseline."""
    dial, values = spec.ladder.get(DIAL), spec.ladder.get(CHINCHILLA)
    if dial not in DIALS:
        problem = "no dial is set" if dial is None else f"{format_value(dial)} is not a dial"
        remedy = f"Use one of: {', '.join(DIALS)}." if dial is None else suggest(str(dial), DIALS)
        raise UserError(problem, path=("ladder", *((DIAL,) if dial is not None else ())), remedy=remedy)
    if others := [path for path in spec.ladder if path not in (CHINCHILLA, DIAL)]:
        problem = f"{CHINCHILLA} sets the sizes of the ladder, and {others[0]} is another setting"
        raise UserError(problem, path=("ladder", others[0]), remedy=f"Remove it, or {CHINCHILLA} and {DIAL}.")
    if not isinstance(values, list) or not values:
        problem = f"{format_value(values)} is not a list of factors on the {dial}"
        raise UserError(problem, path=("ladder", CHINCHILLA), remedy=f"Write e.g. {EXAMPLE}.")
    for number, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            problem = f"{format_value(value)} is not a factor on the {dial}"
            raise UserError(problem, path=("ladder", CHINCHILLA, number), remedy="Use a number above 0, e.g. 0.5.")
    return [Fraction(str(value)) for value in values]


def _changes(first: ResolvedConfig, dial: str, factor: Fraction, place: KeyPath) -> dict[str, Any]:
    """Return the sizes and learning rates of a rung by path, without the number of steps."""
    model, optimizer, schedule = first.model, first.train.optimizer, first.train.schedule
    sizes = {"model.dim": model.dim, **({"model.num_layers": len(model.layers)} if dial == "depth" else {})}
    mixer, ffn = model.layers[0].mixer, model.layers[0].ffn
    if getattr(ffn, "hidden", None) is not None:
        sizes["model.ffn.hidden"] = ffn.hidden
    for name in ("num_heads", "num_kv_heads") if getattr(mixer, "head_dim", None) is not None else ():
        if getattr(mixer, name, None) is not None:
            sizes[f"model.mixer.{name}"] = getattr(mixer, name)
    changes: dict[str, Any] = {}
    for path, size in sizes.items():
        if (scaled := size * factor).denominator != 1:
            problem = f"{format_value(float(factor))} times {path}={size} is {format_value(float(scaled))}"
            raise UserError(problem, path=place, remedy="Use a factor that gives an integer.")
        changes[path] = int(scaled)
    if getattr(optimizer, "base_dim", None) is None:
        rates = {"train.optimizer.lr": getattr(optimizer, "lr", None)}
        rates["train.schedule.min_lr"] = getattr(schedule, "min_lr", None)
        changes |= {path: _rate(rate, factor) for path, rate in rates.items() if rate}
    return changes


def _rate(rate: float, factor: Fraction) -> float:
    """Return a learning rate at another width, rounded; at the baseline's width, the rate itself."""
    return rate if factor == 1 else float(f"{rate / math.sqrt(factor):.{DIGITS}g}")


def count_parameters(config: ResolvedConfig, source: Source) -> int:
    """Return the number of trainable parameters of a model, with its embedding. Nothing is computed."""

    def build() -> Any:
        return partition_trainable(build_model(config.model, source.interface, source.seq_len, key=root_key(0)))[0]

    return count_elements(jax.eval_shape(build))
