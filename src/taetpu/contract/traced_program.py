"""The computation of a run before compilation: its initial state, its program text, and the numbers that it reads."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.contract.jaxpr_digest import digest_array, digest_outputs
from taetpu.core.config import iter_components
from taetpu.core.sites import find_sites
from taetpu.core.static_dynamic import bind, split
from taetpu.data.base import Batch, Source, array_shapes
from taetpu.nn.common import partition_trainable
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.stack import merge_stacks
from taetpu.optim.objectives import default_objective
from taetpu.optim.selection import observers, selectors
from taetpu.spec.start import StoredParameters
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.layout import auto_precision, structure_key
from taetpu.train.selection import select
from taetpu.train.step import (
    StepContext,
    TrainState,
    evaluate,
    evaluated_model,
    first_state,
    new_model,
    observe,
    train_step,
)

MAX_KEPT = 64  # maximum number of cached outlines
CALLED = re.compile(r"(?<![\w.])(?:func\.)?call @([\w.]+)")  # excludes custom calls, whose bodies are not in the module


@dataclass(frozen=True)
class Parameter:
    """A trained array at initialisation.

    Attributes:
        shape: The shape of the array.
        drawn: A digest of the operations that draw the array from the seed, or of a loaded array. For every seed,
            arrays with equal digests have bitwise identical values.
    """

    shape: tuple[int, ...]
    drawn: bytes


class Computation:
    """The computation of all runs of a config. The program is lowered on first use.

    Args:
        config: The config.
        source: The prepared task of the config.
        live: The fields to trace even at their neutral value (see `core.static_dynamic.split`). Use the same fields for
            all configs that are compared, so that, for example, a mask of ones and no mask have the same program.
        start: The stored model that the runs start from, for one seed; None if their parameters are drawn.

    Attributes:
        outline: The part of the computation that depends only on the structure of the config.
        numbers: The traced numbers by path, in the form in which the program reads them.
        parameters: All trained arrays by logical name.
    """

    def __init__(
        self, config: ResolvedConfig, source: Source, live: frozenset[str], start: StoredParameters | None = None
    ):
        structure, values = split(config, live)
        self.config, self.source = config, source
        self.numbers = {path: np.asarray(value, np.float32) for path, value in sorted(values.items())}
        self.outline = _outline(structure, source, self.numbers)
        self._values = {path: digest_array(value) for path, value in self.numbers.items()}
        digests = digest_outputs(self.outline.start, [*self._values.values(), b"seed"])
        shapes = self.outline.parameters
        loaded = {} if start is None else {n: digest_array(a) for n, a in start.fitting(shapes).items()}
        self.parameters = {
            name: Parameter(shapes[name], loaded.get(name, digest))
            for name, digest in zip(shapes, digests, strict=False)
        }
        self._state, self._loaded = digests[len(shapes) :], [digest for _, digest in sorted(loaded.items())]

    def same_as(self, other: "Computation") -> bool:
        """Return whether both computations read the same data and give bitwise identical results.

        For most arms, no training step is traced, because the parameters or the evaluations differ, or both
        computations have the same structure.
        """
        same_length = self.outline.steps == other.outline.steps
        if self.parameters != other.parameters or not same_length or not self.same_data(other):
            return False
        if self.outline is other.outline:
            return all(np.array_equal(self.numbers[path], other.numbers[path]) for path in self.outline.reads)
        return self.outline.evaluation == other.outline.evaluation and self.identity == other.identity

    def same_data(self, other: "Computation") -> bool:
        """Return whether, for each seed, both computations read the same windows in the same order."""

        def windows(of: "Computation") -> tuple[str, int, int]:
            return of.source.trained or of.source.fingerprint, of.source.seq_len, of.config.train.batch_size

        return windows(self) == windows(other)

    @cached_property
    def identity(self) -> str:
        """A digest of the program, the initial state that it reads, and the numbers that it reads directly."""
        outline = self.outline
        state = [digest for digest, used in zip(self._state, outline.reads_of_state, strict=True) if used]
        read = [self._values[path] for path in sorted(outline.reads_directly)]
        return hashlib.sha256(b"".join([outline.program.encode(), *state, *self._loaded, *read])).hexdigest()


class Outline:
    """The traced initialisation, training step and evaluation of runs with the same structure.

    The parameters of each layer are drawn separately, and equal layers are stacked afterwards. Therefore, neither the
    draws nor the program text depend on how the configs of neighbouring layers are written.

    Args:
        structure: The config without its traced numbers.
        source: The prepared task of the config.
        numbers: The traced numbers by path, in order. Only the shapes and dtypes are used.
        precision: The dtype of activations and matrix products.
    """

    def __init__(self, structure: ResolvedConfig, source: Source, numbers: Mapping[str, Any], precision: str):
        self.structure, self.source, self.dtype = structure, source, jnp.dtype(precision)
        self.steps = structure.train.total_steps(source.num_windows)
        self.shapes = {path: jax.ShapeDtypeStruct(np.shape(value), value.dtype) for path, value in numbers.items()}
        self.seed = jax.ShapeDtypeStruct((), jnp.int32)
        self.start, (named, self.state) = jax.make_jaxpr(self._start, return_shape=True)(self.shapes, self.seed)
        self.parameters = {name: shape.shape for name, shape in sorted(named.items())}

    def _start(self, numbers: Mapping[str, Any], seed: Any) -> tuple[dict[str, Any], TrainState]:
        config = bind(self.structure, numbers)
        model = new_model(config, self.source, seed, apart=True)
        stacked = eqx.tree_at(lambda m: m.stacks, model, merge_stacks(model.stacks))
        return named_parameters(model), first_state(config, self.source, stacked)

    def _context(self, numbers: Mapping[str, Any], seed: Any, arrays: Any) -> StepContext:
        return StepContext(bind(self.structure, numbers), self.source, arrays, seed, self.steps, self.dtype)

    def _step(
        self, state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any, windows: Batch,
        selected: Batch | None = None,
    ) -> list[Any]:  # fmt: skip
        """Return all values that a training step, the run's choices and an evaluation compute, except step counters."""
        context = self._context(numbers, seed, arrays)
        if not self.steps:  # no result depends on training
            return jax.tree.leaves(self._measured(state, context.config, windows))
        new, metrics = train_step(state, rows, context)
        config = context.config
        chosen = ()
        if observers(config.train):
            new, losses = select(new, selected, context)
            chosen = new.selection, new.stopped_at, losses
        measured = self._measured(new, config, windows)
        return jax.tree.leaves((partition_trainable(new.model)[0], new.opt, new.mean, metrics, measured, chosen))

    def _measured(self, state: TrainState, config: ResolvedConfig, windows: Batch) -> dict[str, Any]:
        """Return the sums of an evaluation."""
        metrics, objective = config.train.eval_metrics, default_objective(config.task)
        model = evaluated_model(state, config)
        return evaluate(model, windows, dtype=self.dtype, metrics=metrics, objective=objective)

    @property
    def _inputs(self) -> tuple[Any, ...]:
        rows = jax.ShapeDtypeStruct((self.structure.train.batch_size,), jnp.int32)
        return self.state, self.shapes, self.seed, array_shapes(self.source), rows

    @cached_property
    def traced_step(self) -> Any:
        """The training step and the evaluation, traced by jax."""
        size = self.structure.train.batch_size
        most = max((component.windows for component in selectors(self.structure.train).values()), default=0)
        selected = [self._windows(-(-most // size), size)] if most else []
        return jax.jit(self._step).trace(*self._inputs, self._windows(1, size), *selected)

    def _windows(self, *lead: int) -> Batch:
        return self.structure.task.batch.shapes(self.source.interface, *lead, self.source.seq_len)

    @cached_property
    def sites(self) -> dict[str, tuple[int, ...]]:
        """The model's sites with their layers; see `find_sites`."""
        return find_sites(lambda model, tokens: model(tokens), self.state.model, self._windows(1).tokens)

    @cached_property
    def metric_names(self) -> frozenset[str]:
        """The names of the values that the metrics return. Reading them raises the errors in the metrics' code."""

        def measure(state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any) -> dict[str, Any]:
            context = self._context(numbers, seed, arrays)
            return observe(state, rows, context.config.train.metrics, context)

        return frozenset(jax.eval_shape(measure, *self._inputs))

    @cached_property
    def lowered(self) -> tuple[str, dict[str, int]]:
        """The sha256 of the program, and the number of calls of each StableHLO operation.

        jax omits operations that no result depends on. The sha256 covers the program's text and the closed-over arrays.
        jax may make these arrays inputs of the program, so that the text does not contain their values.
        """
        digest, text = _digest_program(self.traced_step)
        return digest, count_operations(text)

    @cached_property
    def evaluation(self) -> str:
        """The sha256 of the program of an evaluation, which the program of the step contains.

        Equal steps have equal evaluations, and an evaluation takes a quarter of the time to trace and lower.
        """

        def measure(state: TrainState, numbers: Any, windows: Batch) -> list[Any]:
            return jax.tree.leaves(self._measured(state, bind(self.structure, numbers), windows))

        windows = self._windows(1, self.structure.train.batch_size)
        return _digest_program(jax.jit(measure).trace(self.state, self.shapes, windows))[0]

    @property
    def program(self) -> str:
        """The sha256 of the program's text and closed-over arrays."""
        return self.lowered[0]

    @property
    def operations(self) -> dict[str, int]:
        """The number of calls of each StableHLO operation; see `count_operations`."""
        return self.lowered[1]

    @cached_property
    def _used(self) -> list[bool]:
        """For each input of `_step`, whether any result depends on it."""
        return dce_jaxpr(self.traced_step.jaxpr.jaxpr, True)[1]

    @property
    def reads_of_state(self) -> list[bool]:
        """For each leaf of the state, whether the step reads it."""
        return self._used[: len(jax.tree.leaves(self.state))]

    @property
    def reads_directly(self) -> frozenset[str]:
        """The paths of the numbers that the step itself reads, without those that only the initial state reads."""
        return _select(self.shapes, self._used[len(self.reads_of_state) :])

    @cached_property
    def reads(self) -> frozenset[str]:
        """The paths of the numbers on which any trained or measured value depends."""
        _, used = dce_jaxpr(self.start.jaxpr, [True] * len(self.parameters) + self.reads_of_state)
        return self.reads_directly | _select(self.shapes, used)


_OUTLINES: dict[Any, Outline] = {}


def _outline(structure: ResolvedConfig, source: Source, numbers: Mapping[str, np.ndarray]) -> Outline:
    """Return the outline of a structure. Outlines are cached in this process."""
    precision = structure.train.precision
    precision = auto_precision() if precision == "auto" else precision
    kinds = tuple(type(component) for component in iter_components(structure))
    key = (structure_key(structure), kinds, precision, source.fingerprint, source.interface, source.seq_len)
    if key not in _OUTLINES:
        if len(_OUTLINES) >= MAX_KEPT:
            del _OUTLINES[next(iter(_OUTLINES))]
        _OUTLINES[key] = Outline(structure, source, numbers, precision)
    return _OUTLINES[key]


def _digest_program(traced: Any) -> tuple[str, str]:
    """Return the sha256 of a traced program's text and closed-over arrays, and its text."""
    text = traced.lower().as_text()
    closed_over = [digest_array(const).hex() for const in traced.jaxpr.consts]
    return hashlib.sha256(" ".join([text, *closed_over]).encode()).hexdigest(), text


def count_operations(text: str) -> dict[str, int]:
    """Return the number of calls of each operation in a StableHLO module, starting from its main function.

    The operations in the body of a loop are counted once.
    """
    _, *parts = re.split(r"func\.func \w+ @([\w.]+)", text)
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    counts: dict[str, Counter[str]] = {}

    def count(name: str) -> Counter[str]:
        if name not in counts:
            counts[name] = Counter(re.findall(r"stablehlo\.(?!return)(\w+)", bodies[name]))
            for callee in CALLED.findall(bodies[name]):
                counts[name] = counts[name] + count(callee)
        return counts[name]

    return dict(sorted(count("main").items()))


def _select(names: Iterable[str], used: Iterable[bool]) -> frozenset[str]:
    return frozenset(name for name, chosen in zip(names, used, strict=False) if chosen)
