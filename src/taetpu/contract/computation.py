"""What a run computes, known before it is compiled: its start, the text of its program, the numbers that it reads."""

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
    """A trained array at its start.

    Attributes:
        drawn: digest of how it is drawn from the seed; equal for arrays that start from the same bits.
    """

    shape: tuple[int, ...]
    drawn: bytes


class Computation:
    """What the runs of a config compute. The program is lowered when it is first asked for.

    Args:
        live: fields traced though neutral here (see `core.static_dynamic.split`): those of all configs that are
            compared, so that a mask of ones is the same as no mask.

    Attributes:
        outline: what depends on the structure alone.
        numbers: the traced numbers, as they enter the program.
        parameters: every trained array by its logical name.
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
        """Do both compute the same from the same data, bit for bit, however they are written?

        Most arms have other parameters than the baseline, or share its structure: then nothing need be lowered.
        """
        same_length = self.outline.steps == other.outline.steps
        if self.parameters != other.parameters or not same_length or not self.same_data(other):
            return False
        if self.outline is other.outline:
            return all(np.array_equal(self.numbers[path], other.numbers[path]) for path in self.outline.reads)
        return self.identity == other.identity

    def same_data(self, other: "Computation") -> bool:
        """Does a seed of both read the same windows in the same order?"""
        a, b = ((c.source.fingerprint, c.source.seq_len, c.config.train.batch_size) for c in (self, other))
        return a == b

    @cached_property
    def identity(self) -> str:
        """A digest of the program, of the values that it starts from, and of the numbers that it reads besides."""
        outline = self.outline
        state = [digest for digest, used in zip(self._state, outline.reads_of_state, strict=True) if used]
        read = [self._values[path] for path in sorted(outline.reads_directly)]
        return hashlib.sha256(b"".join([outline.program.encode(), *state, *read])).hexdigest()


class Outline:
    """One run of a structure: its start traced, its train step and evaluation lowered.

    Layers are drawn one by one, and those that turn out alike are stacked afterwards: neither how a parameter is drawn
    nor the text may depend on how the configs of neighbouring layers were written.

    Args:
        numbers: the traced numbers by path, in order, of which only the shapes matter.
        precision: of activations and products.
    """

    def __init__(self, structure: ResolvedConfig, source: Source, numbers: Mapping[str, Any], precision: str):
        self.structure, self.source, self.dtype = structure, source, jnp.dtype(precision)
        self.steps = structure.train.total_steps(source.num_windows)
        self.shapes = {path: _like(value) for path, value in numbers.items()}
        self.seed = jax.ShapeDtypeStruct((), jnp.int32)
        self.start, (named, self.state) = jax.make_jaxpr(self._start, return_shape=True)(self.shapes, self.seed)
        self.parameters = {name: shape.shape for name, shape in sorted(named.items())}

    def _start(self, numbers: Mapping[str, Any], seed: Any) -> tuple[dict[str, Any], TrainState]:
        config = bind(self.structure, numbers)
        model = new_model(config, self.source, seed, apart=True)
        stacked = eqx.tree_at(lambda m: m.stacks, model, merge_stacks(model.stacks))
        return named_parameters(model), first_state(config, stacked)

    def _onwards(self, state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any, windows: Batch) -> list[Any]:
        """All that is trained or measured. When a run counts as diverged is neither."""
        config = bind(self.structure, numbers)
        new, metrics = train_step(
            state, config, self.source, arrays, rows, seed, steps=self.steps, dtype=self.dtype
        )  # fmt: skip
        measured = evaluate(new.model, windows, dtype=self.dtype)
        return jax.tree.leaves((partition_trainable(new.model)[0], new.opt, metrics, measured))

    @property
    def _inputs(self) -> tuple[Any, ...]:
        rows = jax.ShapeDtypeStruct((self.structure.train.batch_size,), jnp.int32)
        arrays = {name: _like(array) for name, array in self.source.arrays.items()}
        return self.state, self.shapes, self.seed, arrays, rows

    @cached_property
    def onwards(self) -> Any:
        """The train step and the evaluation, traced by jax."""
        window = (1, self.structure.train.batch_size, self.source.seq_len)
        shapes: Any = [jax.ShapeDtypeStruct(window, dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32)]
        return jax.jit(self._onwards).trace(*self._inputs, Batch(*shapes))

    @cached_property
    def sites(self) -> frozenset[str]:
        """The sites that the model has."""
        tokens = jax.ShapeDtypeStruct((1, self.source.seq_len), jnp.int32)
        return frozenset(find_sites(lambda model, tokens: model(tokens), self.state.model, tokens))

    @cached_property
    def looks(self) -> frozenset[str]:
        """The names of what the metrics measure. Tracing them finds the mistakes in them."""

        def look(state: TrainState, numbers: Any, seed: Any, arrays: Any, rows: Any) -> dict[str, Any]:
            config = bind(self.structure, numbers)
            return observe(state, config, self.source, arrays, rows, seed, steps=self.steps, dtype=self.dtype,
                           metrics=config.train.metrics)  # fmt: skip

        return frozenset(jax.eval_shape(look, *self._inputs))

    @cached_property
    def lowered(self) -> tuple[str, dict[str, int]]:
        """sha256 of the program's text, and how often it calls each StableHLO operation, a loop's body counted once.

        jax leaves out what no result depends on. Arrays closed over are hashed apart: the text may have them as inputs.
        """
        text = self.onwards.lower().as_text()
        closed_over = [digest_array(const).hex() for const in self.onwards.jaxpr.consts]
        return hashlib.sha256(" ".join([text, *closed_over]).encode()).hexdigest(), operations(text)

    @property
    def program(self) -> str:
        return self.lowered[0]

    @property
    def operations(self) -> dict[str, int]:
        return self.lowered[1]

    @cached_property
    def _used(self) -> list[bool]:
        """Of the inputs of `_onwards`, those that a result depends on."""
        return dce_jaxpr(self.onwards.jaxpr.jaxpr, True)[1]

    @property
    def reads_of_state(self) -> list[bool]:
        """Which leaves of the state are read."""
        return self._used[: len(jax.tree.leaves(self.state))]

    @property
    def reads_directly(self) -> frozenset[str]:
        """The numbers that are read besides the state."""
        return _chosen(self.shapes, self._used[len(self.reads_of_state) :])

    @cached_property
    def reads(self) -> frozenset[str]:
        """The numbers that anything trained or measured depends on."""
        _, used = dce_jaxpr(self.start.jaxpr, [True] * len(self.parameters) + self.reads_of_state)
        return self.reads_directly | _chosen(self.shapes, used)


_KNOWN: dict[Any, Outline] = {}


def _outline(structure: ResolvedConfig, source: Source, numbers: Mapping[str, np.ndarray]) -> Outline:
    """The outline of a structure, made once in a process."""
    precision = structure.train.precision
    precision = auto_precision() if precision == "auto" else precision
    kinds = tuple(type(component) for component in iter_components(structure))
    key = (structure_key(structure), kinds, precision, source.fingerprint, source.vocab_size, source.seq_len)
    if key not in _KNOWN:
        if len(_KNOWN) >= MAX_KEPT:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = Outline(structure, source, numbers, precision)
    return _KNOWN[key]


def operations(text: str) -> dict[str, int]:
    """How often each operation of a StableHLO module is called from its main function, a loop's body counted once."""
    _, *parts = re.split(r"func\.func \w+ @([\w.]+)", text)
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    found: dict[str, Counter[str]] = {}

    def of(name: str) -> Counter[str]:
        if name not in found:
            found[name] = Counter(re.findall(r"stablehlo\.(?!return)(\w+)", bodies[name]))
            for callee in CALLED.findall(bodies[name]):
                found[name] = found[name] + of(callee)
        return found[name]

    return dict(sorted(of("main").items()))


def _like(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(array), array.dtype)


def _chosen(names: Iterable[str], used: Iterable[bool]) -> frozenset[str]:
    return frozenset(name for name, chosen in zip(names, used, strict=False) if chosen)
