"""The coordinate check of `taetpu plan --coordinates`: how the sizes of activations depend on the width of the model.

Each arm is built at several widths and trained for a few steps at a constant learning rate. The size of an activation
is the mean of its absolute elements on the first batch, without masked scores. Under muP, no size may grow with the
width, and the changes by training must be independent of it.

Source: Yang et al. 2022, "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer",
arXiv 2203.03466, appendix D.1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from taetpu.core.config import Component
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError, check_known, locate_errors
from taetpu.core.keys import named, root_key
from taetpu.core.sites import Ragged, Read, capture, find_sites
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.data.base import Batch, Source, read_windows
from taetpu.nn.lm import LM
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.step import StepContext, init_state, train_step

SITES = ("residual", "mixer.scores", "mixer.out", "ffn.out", "logits")
"""The sites whose sizes are measured, if the model has them."""
FACTORS = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""The default widths, as multiples of the study's `model.dim`."""
THRESHOLD = 0.2
"""A size is steady if its slope, log size over log width, is at most this in magnitude."""
MASKED = -1e29
"""Scores below this number are masked."""
SCALED = ("num_heads", "num_kv_heads")
"""The fields that scale with the width in a mixer that sets `head_dim`."""

Sizes = Mapping[str, np.ndarray]
"""The sizes by site, `(seeds, 1 + steps, layers)`: before training, then those of the changes after each step."""


def check_coordinates(
    study: Study,
    update: Callable[[int, int], None] = lambda done, total: None,
    *,
    arms: Sequence[str] = (),
    widths: Sequence[int] = (),
    steps: int = 4,
    seeds: int = 3,
) -> dict[str, Any]:
    """Measure the sizes of activations of arms at several widths.

    Args:
        study: The study.
        update: A function to call with the number of finished models and the number of all models.
        arms: The names of the arms; all arms by default.
        widths: The widths; by default, `FACTORS` times the width of each arm.
        steps: The number of training steps.
        seeds: The number of seeds, counted from 0.

    Returns:
        A dictionary with `study`, `steps`, `seeds`, `threshold`, and `arms`: for each, `arm`, `widths` and `sites`,
        which are rows of `summarize_sizes`.

    Raises:
        UserError: if there is no such arm, or an arm cannot be built at a width.
    """
    chosen, rows = _select_arms(study, arms), []
    scaled = [[_scaled_arm(arm, width) for width in _widths(arm, widths)] for arm in chosen]
    total = seeds * sum(map(len, scaled))
    update(0, total)
    for arm, configs in zip(chosen, scaled, strict=True):
        measured = list[Sizes]()
        for config in configs:
            program, by_seed = SizeProgram(config, study.source(arm), steps), list[dict[str, np.ndarray]]()
            for seed in range(seeds):
                by_seed.append(program(seed))
                update(seeds * sum(len(row["widths"]) for row in rows) + seeds * len(measured) + seed + 1, total)
            measured.append({name: np.stack([row[name] for row in by_seed]) for name in by_seed[0]})
        dims = [config.model.dim for config in configs]
        rows.append({"arm": arm.name, "widths": dims, "sites": [*summarize_sizes(dims, measured)]})
    return {"study": study.name, "steps": steps, "seeds": seeds, "threshold": THRESHOLD, "arms": rows}


def _select_arms(study: Study, names: Sequence[str]) -> list[Arm]:
    known = {arm.name: arm for arm in study.arms}
    for name in names:
        check_known(name, known, f"no arm {name!r} in this study", path=("--arm",))
    return [known[name] for name in names or known]


def _widths(arm: Arm, widths: Sequence[int]) -> list[int]:
    """Return the widths in increasing order."""
    dim = arm.config.model.dim
    chosen = sorted({*widths}) or [int(factor * dim) for factor in FACTORS if (factor * dim).denominator == 1]
    if len(chosen) < 2 or chosen[0] < 1:
        problem = f"a slope requires at least two different widths above 0, got {', '.join(map(str, widths))}"
        raise UserError(problem, path=("--widths",), remedy=f"Use e.g. --widths {dim},{2 * dim},{4 * dim}.")
    return chosen


# --- models of other widths ------------------------------------------------------------------------------------------


def _scaled_arm(arm: Arm, width: int) -> ResolvedConfig:
    if arm.config.train.start is not None:
        problem = f"arm {arm.name!r} starts from a stored model, whose width cannot change"
        raise UserError(problem, path=("train", "start"), remedy="Name other arms with --arm.")
    try:
        config = scale_width(arm.config, width)
        config.check()
    except UserError as error:
        wide = UserError(f"at dim={width}: {error.problem}", path=error.path, remedy=error.remedy)
        raise arm.explain(wide) from None
    return config


def scale_width(config: ResolvedConfig, width: int) -> ResolvedConfig:
    """Return a config with another width of the model and a constant learning rate.

    The inner size `hidden` of a component scales with the width if it is set. A mixer that sets `head_dim` keeps it and
    gets more heads; the heads of other mixers get wider. All other sizes stay.

    Raises:
        UserError: if a size is not an integer at this width.
    """
    factor = Fraction(width, config.model.dim)
    layers = []
    for i, layer in enumerate(config.model.layers):
        parts = {}
        for slot in ("mixer", "ffn"):
            with locate_errors("model", "layers", i, slot):
                parts[slot] = _scale_component(getattr(layer, slot), factor)
        layers.append(layer.model_copy(update=parts))
    model = config.model.model_copy(update={"dim": width, "layers": tuple(layers)})
    constant = build_component("schedule", {"kind": "constant"})
    train = config.train.model_copy(update={"schedule": constant})
    return config.model_copy(update={"model": model, "train": train})


def _scale_component(component: Component, factor: Fraction) -> Component:
    settings, changed = dict(component), dict[str, int]()
    for name in ("hidden", *(SCALED if settings.get("head_dim") is not None else ())):
        if (value := settings.get(name)) is None:
            continue
        if (value * factor).denominator != 1:
            problem = f"{name}={value} times {factor} is not an integer"
            raise UserError(problem, path=(name,), remedy="Choose other widths with --widths, or unset `head_dim`.")
        changed[name] = int(value * factor)
    if "num_heads" in changed and settings.get("drop_heads"):
        problem = "drop_heads names single heads, but their number depends on the width"
        raise UserError(problem, path=("drop_heads",), remedy="Unset `head_dim`, so that heads get wider instead.")
    return component.model_copy(update=changed) if changed else component


# --- sizes -----------------------------------------------------------------------------------------------------------


class SizeProgram:
    """The compiled measurement of the sizes of a config's activations, for any seed.

    Args:
        config: The config.
        source: The prepared task.
        steps: The number of training steps.
    """

    def __init__(self, config: ResolvedConfig, source: Source, steps: int):
        self.source, self.steps, self.batch_size = source, steps, config.train.batch_size
        structure, numbers = split(config, promoted_fields(config))
        self.numbers = {path: jnp.asarray(value, jnp.float32) for path, value in numbers.items()}
        self._run = jax.jit(lambda *inputs: self._measure(structure, *inputs))

    def __call__(self, seed: int) -> dict[str, np.ndarray]:
        """Return the sizes for a seed, `(1 + steps, layers)` by site; sites outside the layers have one layer."""
        arrays, rows = read_windows(self.source, self.source.rows(seed, 0, self.steps, self.batch_size))
        sizes = self._run(self.numbers, arrays, rows, jnp.int32(seed))
        return {name: np.asarray(array, np.float64) for name, array in sizes.items()}

    def _measure(self, structure: ResolvedConfig, numbers: Any, arrays: Any, rows: Array, seed: Array) -> Any:
        context = StepContext(bind(structure, numbers), self.source, arrays, seed, self.steps, jnp.float32)
        state = init_state(context.config, self.source, seed)
        probe = self.source.batch(arrays, rows[0], named(root_key(seed), "data", 0))
        before = read_sites(state.model, probe)

        def step(state: Any, rows: Array) -> Any:
            new, _ = train_step(state, rows, context)
            return new, changes(before, read_sites(new.model, probe))

        _, later = jax.lax.scan(step, state, rows)
        return {name: jnp.concatenate([_means(parts, parts)[None], later[name]]) for name, parts in before.items()}


def read_sites(model: LM, batch: Batch) -> dict[str, list[Array]]:
    """Return the activations at `SITES`, each as arrays `(layers, ...)` of consecutive layers with equal shapes."""

    def forward() -> Array:
        return model(batch.tokens, **batch.context)

    layers = find_sites(forward)
    _, reads = capture(forward, [name for name in SITES if name in layers])()

    def parts(name: str, read: Read) -> list[Array]:
        if isinstance(read, Ragged):
            return list(read.parts)
        return [read if layers[name] else read[None]]

    return {name: parts(name, read) for name, read in reads.items()}


def changes(before: Mapping[str, list[Array]], after: Mapping[str, list[Array]]) -> dict[str, Array]:
    """Return the mean absolute changes of activations, `(layers,)` by site."""
    return {
        name: _means([new - old for old, new in zip(before[name], after[name], strict=True)], before[name])
        for name in before
    }


def _means(parts: Sequence[Array], scores: Sequence[Array]) -> Array:
    """Return the mean absolute elements of each layer, without those whose score is masked."""
    means = []
    for part, score in zip(parts, scores, strict=True):
        visible, axes = score > MASKED, tuple(range(1, part.ndim))
        means.append(jnp.where(visible, jnp.abs(part), 0).sum(axes) / jnp.maximum(visible.sum(axes), 1))
    return jnp.concatenate(means)


def summarize_sizes(widths: Sequence[int], measured: Sequence[Sizes]) -> Iterator[dict[str, Any]]:
    """Yield a row for each site and layer, before training and for the change after the last step.

    A row has `site` (with the number of the layer), `moment` (`before` or `change`), `sizes` (means over seeds at each
    width), `slope` and `slope_se` (of log size over log width: mean and standard error over seeds; None where a size is
    0, or for one seed), `verdict`, and `by_step`: the sizes after each step, from the first.
    """
    for moment in ("before", "change"):
        for name in (site for site in SITES if site in measured[0]):
            layers = measured[0][name].shape[-1]
            for layer in range(layers):
                values = np.stack([sizes[name][..., layer] for sizes in measured])  # width, seed, step
                chosen = values[..., 0 if moment == "before" else -1]
                slope, error = fit_slope(widths, chosen)
                yield {
                    "site": f"{name} {layer}" if layers > 1 or name != "logits" else name,
                    "moment": moment,
                    "sizes": chosen.mean(1).tolist(),
                    "slope": slope,
                    "slope_se": error,
                    "verdict": judge_slope(slope),
                    **({"by_step": values.mean(1)[:, 1:].T.tolist()} if moment == "change" else {}),
                }


def fit_slope(widths: Sequence[int], sizes: np.ndarray) -> tuple[float | None, float | None]:
    """Return the slope of log size over log width, as mean and standard error over seeds, from `(width, seed)`."""
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        return None, None
    slopes = np.polyfit(np.log(widths), np.log(sizes), 1)[0]
    return float(slopes.mean()), float(slopes.std(ddof=1) / len(slopes) ** 0.5) if len(slopes) > 1 else None


def judge_slope(slope: float | None) -> str:
    """Return whether a size grows, shrinks or is steady with the width. A size of 0 has no verdict."""
    if slope is None:
        return "none"
    return "steady" if abs(slope) <= THRESHOLD else "grows" if slope > 0 else "shrinks"
