"""The computation of a run, before it is compiled: initial state, program text, and the numbers that it reads."""

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

from taetpu.contract.init_digest import digest_array, digest_outputs
from taetpu.core.config import iter_components
from taetpu.core.sites import find_sites
from taetpu.core.static_dynamic import bind, split
from taetpu.data.batches import Batch, Source
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import named_parameters
from taetpu.nn.stack import merge_stacks
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.layout import auto_precision, structure_key
from taetpu.train.step import TrainState, evaluate, first_state, new_model, observe, train_step

MAX_KEPT = 64  # outlines of structures
CALLED = re.compile(r"(?<![\w.])(?:func\.)?call @([\w.]+)")  # a custom call names no function of the module


@dataclass(frozen=True)
class Parameter:
    """A trained array at initialisation.

    Attributes:
        shape: Its shape.
        drawn: A digest of how it is drawn from the seed. Equal digests mean bitwise identical values.
    """

    shape: tuple[int, ...]
    drawn: bytes


class Computation:
    """The computation of the runs of a config. The program is lowered on first use.

    Args:
        config: The config.
        source: Its prepared task.
        live: Fields to trace even at their neutral value (see `core.static_dynamic.split`). They are the same for all
            compared configs, so that a mask of ones equals no mask.

    Attributes:
        outline: The parts that depend on the structure alone.
        numbers: The traced numbers by path, as they enter the program.
        parameters: Every trained array by its logical name.
    """

    def __init__(self, config: ResolvedConfig, source: Source, live: frozenset[str]):
        structure, found = split(config, live)
        self.config, self.source = config, source
        self.numbers = {path: np.asarray(value, np.float32) for path, value in sorted(found.items())}
        self.outline = _outline(structure, source, self.numbers)
        self._values = {path: digest_array(value) for path, value in self.numbers.items()}
        digests = digest_outputs(self.outline.start, [*self._values.values(), b"seed"])
        shapes = self.outline.parameters
        self.parameters = {name: Parameter(shapes[name], digest) for name, digest in zip(shapes, digests, strict=False)}
        self._state = digests[len(shapes) :]

    def same_as(self, other: "Computation") -> bool:
        """Return whether both compute bitwise identical results from the same data.

        Nothing is lowered if the parameters differ or the structure is shared, as for most arms.
        """
        same_length = self.outline.steps == other.outline.steps
        if self.parameters != other.parameters or not same_length or not self.same_data(other):
            return False
        if self.outline is other.outline:
            return all(np.array_equal(self.numbers[path], other.numbers[path]) for path in self.outline.reads)
        return self.identity == other.identity

    def same_data(self, other: "Computation") -> bool:
        """Return whether a seed reads the same windows in the same order in both."""
        a, b = ((c.source.fingerprint, c.source.seq_len, c.config.train.batch_size) for c in (self, other))
        return a == b

    @cached_property
    def identity(self) -> str:
        """A digest of the program, its initial state, and the other numbers that it reads."""
        outline = self.outline
        state = [digest for digest, used in zip(self._state, outline.reads_of_state, strict=True) if used]
        read = [self._values[path] for path in sorted(outline.reads_directly)]
        return hashlib.sha256(b"".join([outline.program.encode(), *state, *read])).hexdigest()


class Outline:
    """One run of a structure: its traced initialisation, and its lowered train step and evaluation.

    Layers are drawn one by one, and equal ones are stacked afterwards. Neither the draws nor the program text depend on
    how the configs of neighbouring layers are written.

    Args:
        structure: The config without its traced numbers.
        source: Its prepared task.
        numbers: The traced numbers by path, in order. Only their shapes matter.
        precision: The dtype of activations and matrix products.
    """

    def __init__(self, structure: ResolvedConfig, source: Source, numbers: Mapping[str, Any], precision: str):
        self.structure, self.source, self.dtype = structure, source, jnp.dtype(precision)
        self.steps = structure.train.total_steps(source.num_windows)
        self.shapes = {path: _shape_of(value) for path, value in numbers.items()}
        self.seed = jax.ShapeDtypeStruct((), jnp.int32)
        self.start, (named, self.state) = jax.make_jaxpr(self._start, return_shape=True)(self.shapes, self.seed)
        self.parameters = {name: shape.shape for name, shape in sorted(named.items())}

    def _start(self, numbers: Mapping[str, Any], seed: Any) -> tuple[dict[str, Any], TrainState]:
        config = bind(self.structure, numbers)
        model = new_model(config, self.source, seed, apart=True)
        stacked = eqx.tree_at(lambda m: m.stacks, model, merge_stacks(model.stacks))
        return named_parameters(model), first_state(config, stacked)

    def _step(self, state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any, windows: Batch) -> list[Any]:
        """Return everything that one step trains or measures. The divergence bound affects neither."""
        config = bind(self.structure, numbers)
        new, metrics = train_step(
            state, config, self.source, arrays, rows, seed, steps=self.steps, dtype=self.dtype
        )  # fmt: skip
        measured = evaluate(new.model, windows, dtype=self.dtype)
        return jax.tree.leaves((partition_trainable(new.model)[0], new.opt, metrics, measured))

    @property
    def _inputs(self) -> tuple[Any, ...]:
        rows = jax.ShapeDtypeStruct((self.structure.train.batch_size,), jnp.int32)
        arrays = {name: _shape_of(array) for name, array in self.source.arrays.items()}
        return self.state, self.shapes, self.seed, arrays, rows

    @cached_property
    def traced_step(self) -> Any:
        """The train step and the evaluation, traced by jax."""
        window = (1, self.structure.train.batch_size, self.source.seq_len)
        shapes: Any = [jax.ShapeDtypeStruct(window, dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32)]
        return jax.jit(self._step).trace(*self._inputs, Batch(*shapes))

    @cached_property
    def sites(self) -> frozenset[str]:
        """The sites of the model."""
        tokens = jax.ShapeDtypeStruct((1, self.source.seq_len), jnp.int32)
        return frozenset(find_sites(lambda model, tokens: model(tokens), self.state.model, tokens))

    @cached_property
    def metric_names(self) -> frozenset[str]:
        """The names of the metrics' values. Tracing them raises the errors in their code."""

        def measure(state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any) -> dict[str, Any]:
            config = bind(self.structure, numbers)
            return observe(state, config, self.source, arrays, rows, seed, steps=self.steps, dtype=self.dtype,
                           metrics=config.train.metrics)  # fmt: skip

        return frozenset(jax.eval_shape(measure, *self._inputs))

    @cached_property
    def lowered(self) -> tuple[str, dict[str, int]]:
        """The sha256 of the program's text, and its StableHLO operations with their number of calls.

        jax omits operations that no result depends on. Closed-over arrays are hashed separately, since the text may
        have them as inputs.
        """
        text = self.traced_step.lower().as_text()
        closed_over = [digest_array(const).hex() for const in self.traced_step.jaxpr.consts]
        return hashlib.sha256(" ".join([text, *closed_over]).encode()).hexdigest(), count_operations(text)

    @property
    def program(self) -> str:
        """The sha256 of the program's text."""
        return self.lowered[0]

    @property
    def operations(self) -> dict[str, int]:
        """The number of calls of each StableHLO operation; see `count_operations`."""
        return self.lowered[1]

    @cached_property
    def _used(self) -> list[bool]:
        """Whether a result depends on each input of `_step`."""
        return dce_jaxpr(self.traced_step.jaxpr.jaxpr, True)[1]

    @property
    def reads_of_state(self) -> list[bool]:
        """Whether each leaf of the state is read."""
        return self._used[: len(jax.tree.leaves(self.state))]

    @property
    def reads_directly(self) -> frozenset[str]:
        """The numbers that the step reads directly, not through the initial state."""
        return _select(self.shapes, self._used[len(self.reads_of_state) :])

    @cached_property
    def reads(self) -> frozenset[str]:
        """The numbers that any trained or measured value depends on."""
        _, used = dce_jaxpr(self.start.jaxpr, [True] * len(self.parameters) + self.reads_of_state)
        return self.reads_directly | _select(self.shapes, used)


_OUTLINES: dict[Any, Outline] = {}


def _outline(structure: ResolvedConfig, source: Source, numbers: Mapping[str, np.ndarray]) -> Outline:
    """Return the outline of a structure from a cache of the process."""
    precision = structure.train.precision
    precision = auto_precision() if precision == "auto" else precision
    kinds = tuple(type(component) for component in iter_components(structure))
    key = (structure_key(structure), kinds, precision, source.fingerprint, source.vocab_size, source.seq_len)
    if key not in _OUTLINES:
        if len(_OUTLINES) >= MAX_KEPT:
            del _OUTLINES[next(iter(_OUTLINES))]
        _OUTLINES[key] = Outline(structure, source, numbers, precision)
    return _OUTLINES[key]


def count_operations(text: str) -> dict[str, int]:
    """Return how often a StableHLO module calls each operation from its main function. A loop's body counts once."""
    _, *parts = re.split(r"func\.func \w+ @([\w.]+)", text)
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    found: dict[str, Counter[str]] = {}

    def count(name: str) -> Counter[str]:
        if name not in found:
            found[name] = Counter(re.findall(r"stablehlo\.(?!return)(\w+)", bodies[name]))
            for callee in CALLED.findall(bodies[name]):
                found[name] = found[name] + count(callee)
        return found[name]

    return dict(sorted(count("main").items()))


def _shape_of(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(array), array.dtype)


def _select(names: Iterable[str], used: Iterable[bool]) -> frozenset[str]:
    return frozenset(name for name, chosen in zip(names, used, strict=False) if chosen)
