"""A pack: runs that differ only in numbers, compiled into one program and trained together.

The program maps the functions of `train.step` over a leading run axis, which is sharded over devices, so that no
collective can appear; devices speak with each other only where several of them share one run. The runs of one device
are vectorised on an accelerator and take turns on a CPU core. How many steps a dispatch takes is an input of the
program: every chunk of a study, whatever its length, runs the same code, and where chunks are cut changes no bit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.core.distributed import to_devices, to_host
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import named, root_key
from taetpu.core.static_dynamic import bind, split
from taetpu.data.batches import Batch, Source, evaluation_order
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.nn.embedding import check_tokens
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.device_capabilities import Capabilities, platform_of
from taetpu.train.layout import Layout
from taetpu.train.pack_plan import Pack
from taetpu.train.sample import continue_tokens
from taetpu.train.sharding import DATA, MODEL, RUN, WHOLE, Division, ManualDivision, PartitionedDivision, tree_shardings
from taetpu.train.step import TrainState, evaluate, init_state, observe, train_step

RUNS = PartitionSpec(RUN)
SHARED = PartitionSpec()
DIVIDED = PartitionSpec(None, DATA)


def make_mesh(layout: Layout, on: Sequence[Any] | None = None) -> tuple[Mesh, Division]:
    """Return the first `layout.devices` devices along the axes `(run, data, model)`, and how they share one run.

    Where there are fewer runs than devices, several devices share the batch of each run.

    Args:
        on: the devices to take them from; all there are unless given.

    Raises:
        UserError: there are not so many; on fewer the numbers would not be those that were begun.
    """
    there, devices = jax.devices() if on is None else on, layout.devices
    if len(there) < devices:
        raise UserError(
            f"this pack was begun on {devices} devices, and here are {len(there)}",
            remedy="go on where it was begun; on a CPU, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} to make as many of fewer cores",
        )
    runs = devices // (layout.data * layout.model) if layout.divided else min(layout.width, devices)
    mesh = Mesh(np.array(there[:devices]).reshape(runs, -1, layout.model), (RUN, DATA, MODEL))
    if layout.divided:
        return mesh, PartitionedDivision(mesh)
    return mesh, ManualDivision(mesh.shape[DATA]) if mesh.shape[DATA] > 1 else WHOLE


class Shapes(NamedTuple):
    """The arguments of a program's functions, as `jax.ShapeDtypeStruct`s; None where there is nothing to evaluate."""

    init: tuple[Any, ...]
    advance: tuple[Any, ...]
    evaluate: tuple[Any, ...] | None


class Program:
    """The compiled functions of one structure at one pack width.

    Args:
        structure: the config with holes where traced numbers go.
        source: the prepared task.
        layout: how many runs the program trains at once, and over which devices.
        steps: optimizer steps of a whole run.
        precision: of activations and products, `float32` or `bfloat16`.
        execution: how the model is computed.
        chunk: the most steps one dispatch may take.
        on: devices to use instead of those there are; they may be those of a topology, for which one can only compile.
    """

    def __init__(
        self,
        structure: ResolvedConfig,
        source: Source,
        layout: Layout,
        *,
        steps: int,
        precision: str = "float32",
        execution: ComputeOptions = DEFAULT_OPTIONS,
        chunk: int = 64,
        on: Sequence[Any] | None = None,
    ):
        self.structure, self.source, self.steps, self.width, self.chunk = structure, source, steps, layout.width, chunk
        self.mesh, self.division = make_mesh(layout, on)
        self.partitioned = layout.divided
        self.dtype, self.execution = jnp.dtype(precision), execution
        place = Capabilities(platform_of(self.mesh.devices.flat[0]))
        place.check_path(execution.attention, remedy="go on where this pack was begun")
        self.observers: dict[int, Any] = {}
        self.trained_on: dict[Any, Any] = {}  # where the arrays of models in training lie, by structure

    @cached_property
    def arrays(self) -> dict[str, jax.Array]:
        """The task's arrays, on every device."""
        return to_devices(dict(self.source.arrays), NamedSharding(self.mesh, SHARED))

    def map_over_runs(
        self,
        fn: Callable[..., Any],
        shared: Sequence[int] = (),
        donate: Sequence[int] = (),
        divided: Sequence[int] = (),
        once: bool = False,
    ) -> Any:
        """`fn` mapped over runs and compiled; the arguments numbered in `shared` and `divided` have no run axis.

        Of what is `divided`, each device that shares a run gets a part of the second axis. What is called `once` takes
        longer to compile well than to run.
        """

        platform = self.mesh.devices.flat[0].platform

        def mapped(*args: Any) -> Any:
            axes = tuple(None if i in (*shared, *divided) else 0 for i in range(len(args)))
            if self.partitioned:
                found = jax.vmap(fn, in_axes=axes, spmd_axis_name=RUN)(*args)
                return jax.lax.with_sharding_constraint(found, self.state_shardings(found))
            specs = tuple(SHARED if i in shared else DIVIDED if i in divided else RUNS for i in range(len(args)))
            f = map_sequentially(fn, axes, bool(donate)) if platform == "cpu" else jax.vmap(fn, in_axes=axes)
            return jax.shard_map(f, mesh=self.mesh, in_specs=specs, out_specs=RUNS, check_vma=False)(*args)

        # `Program.advance.<locals>.many` is `advance` in traces, dumps and what is said of compiles.
        mapped.__name__ = getattr(fn, "func", fn).__qualname__.removeprefix("Program.").split(".")[0]
        form: dict[str, Any] = {"donate_argnums": tuple(donate)}
        if not self.partitioned:
            # Said outright, because on one device jax may call it unsharded, and would then compile for both.
            form["out_shardings"] = NamedSharding(self.mesh, RUNS)
        return jit_once(mapped, platform=platform, **form) if once else jax.jit(mapped, **form)

    def place(self, tree: Any) -> Any:
        """Put host arrays with a leading run axis on the pack's devices."""
        return to_devices(tree, NamedSharding(self.mesh, RUNS))

    @property
    def local_runs(self) -> set[int]:
        """The places in the pack of the runs that this process has a part in."""
        places = NamedSharding(self.mesh, RUNS).addressable_devices_indices_map((self.width,))
        return {i for index in places.values() if index for i in range(self.width)[index[0]]}

    @cached_property
    def init(self) -> Callable[[Any, Any], TrainState]:
        """`(numbers, seeds) -> state`."""

        def first(numbers: Any, seed: Any) -> TrainState:
            return self.execution.apply(init_state(bind(self.structure, numbers), self.source, seed))

        return self.map_over_runs(first, once=True)

    @cached_property
    def advance(self) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
        """`(state, numbers, seeds, rows, count, arrays) -> (state, metrics)`.

        `rows` is `(width, chunk, batch)`, of which the first `count` steps are taken; each metric is `(width, chunk)`.
        The state is donated.
        """

        def many(state: TrainState, numbers: Any, seed: Any, rows: Any, count: Any, arrays: Any) -> Any:
            config = bind(self.structure, numbers)
            step = partial(train_step, config=config, source=self.source, arrays=arrays, seed=seed,
                           steps=self.steps, dtype=self.dtype, division=self.division)  # fmt: skip
            shapes = jax.eval_shape(lambda s: step(s, rows=rows[0])[1], state)
            log = {name: jnp.zeros((self.chunk, *shape.shape), shape.dtype) for name, shape in shapes.items()}

            def body(i: Any, carry: Any) -> Any:
                state, log = carry
                state, metrics = step(state, rows=rows[i])
                return state, {name: log[name].at[i].set(metrics[name]) for name in log}

            return jax.lax.fori_loop(0, count, body, (state, log))

        return self.map_over_runs(many, shared=(4, 5), donate=(0,))

    def observe(self, every: int) -> Callable[..., dict[str, jax.Array]]:
        """`(state, numbers, seeds, rows, arrays) -> values`, each `(width,)`: the metrics due every so many steps.

        `rows` is `(width, batch)`, that of the next step.
        """
        if every not in self.observers:
            due = {name: metric for name, metric in self.structure.train.metrics.items() if metric.every == every}

            def one(state: TrainState, numbers: Any, seed: Any, rows: Any, arrays: Any) -> Any:
                return observe(state, bind(self.structure, numbers), self.source, arrays, rows, seed,
                               steps=self.steps, dtype=self.dtype, metrics=due,
                               division=self.division if self.partitioned else WHOLE)  # fmt: skip

            one.__qualname__ = f"observe_{every}"
            self.observers[every] = self.map_over_runs(one, shared=(4,))
        return self.observers[every]

    @cached_property
    def evaluate(self) -> Callable[..., dict[str, jax.Array]]:
        """`(model, windows, count) -> sums`, each `(width, batches, batch)`; `windows` from `evaluation_set`.

        The first `count` batches are evaluated, so that a sample and the whole split share one program.
        """
        return self.map_over_runs(
            partial(evaluate, dtype=self.dtype, division=self.division), shared=(2,), divided=(1,)
        )

    def evaluate_on_host(self, model: Any, windows: Batch, count: int) -> dict[str, np.ndarray]:
        """Sums of each sequence of the first `count` batches, 0 for the others.

        The model has a leading run axis, and so do the sums: float64 `(width, sequences)`, on the host. A model on the
        host is placed on the pack's devices as the one in training.
        """
        if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(model)):
            alike = self.trained_on.get(jax.tree.structure(model))  # equal placement written differently recompiles
            model = jax.tree.map(to_devices, model, self.state_shardings(model) if alike is None else alike)
        else:
            self.trained_on[jax.tree.structure(model)] = jax.tree.map(lambda a: a.sharding, model)
        found = self.evaluate(model, windows, np.int32(count))
        return {name: to_host(sums).astype(np.float64).reshape(self.width, -1) for name, sums in found.items()}

    @cached_property
    def sample(self) -> Callable[..., jax.Array]:
        """`(model, seeds, step, prompt) -> tokens`, `(width, prompt + length)`."""
        settings = self.structure.train.sample
        assert settings is not None  # otherwise nobody asks

        def one(model: Any, seed: Any, step: Any, prompt: Any) -> Any:
            key = named(root_key(seed), "sample", step)
            return continue_tokens(
                model, prompt, key, length=settings.tokens, window=self.source.seq_len,
                temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
            )  # fmt: skip

        return self.map_over_runs(one, shared=(2, 3))

    def evaluation_set(self, split: str, most: int | None = None) -> Batch | None:
        """A split on the device as `(batches, batch, seq)`, in `evaluation_order`, padded with windows of weight 0.

        A batch has at most `most` windows, and no more than in training.
        """
        windows = self.windows(split, most)
        return None if windows is None else to_devices(windows, NamedSharding(self.mesh, DIVIDED))

    def windows(self, split: str, most: int | None = None) -> Batch | None:
        """What `evaluation_set` puts on the device, on the host."""
        data = self.source.evaluation(split)
        if data is None:
            return None
        for ids in (data.tokens, data.targets):  # in the program, one beyond the vocabulary would read its last row
            check_tokens(ids, self.source.vocab_size)
        parts = self.mesh.shape[DATA]
        wanted = min(len(data.tokens), most or len(data.tokens))
        size = min(self.structure.train.batch_size, -(-wanted // parts) * parts)
        order = evaluation_order(len(data.tokens))
        missing = -len(data.tokens) % size

        def batched(a: np.ndarray) -> Any:
            return np.pad(a[order], ((0, missing), (0, 0))).reshape(-1, size, a.shape[1])

        return Batch(*(batched(a) for a in (data.tokens, data.targets, data.weights)))

    def shapes(self, numbers: Mapping[str, Any]) -> "Shapes":
        """What the compiled functions take, as shapes on this program's devices; nothing is placed or computed.

        Args:
            numbers: the traced numbers of one run (see `core.static_dynamic.split`).
        """
        rows = (self.width, self.chunk, self.structure.train.batch_size)
        stacked = self.abstract(stack_numbers([numbers] * self.width), RUNS)
        seeds = self.abstract(np.zeros(self.width, np.int32), RUNS)
        state = jax.eval_shape(self.init, stacked, seeds)
        state = jax.tree.map(
            lambda a, to: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), state, self.state_shardings(state)
        )
        windows = next((w for w in map(self.windows, ("val", "test")) if w is not None), None)
        return Shapes(
            init=(stacked, seeds),
            advance=(state, stacked, seeds, self.abstract(np.zeros(rows, np.int32), RUNS),
                     self.abstract(np.int32(0), SHARED), self.abstract(dict(self.source.arrays), SHARED)),
            evaluate=None if windows is None else (state.model, self.abstract(windows, DIVIDED),
                                                        self.abstract(np.int32(0), SHARED)),
        )  # fmt: skip

    def abstract(self, tree: Any, spec: PartitionSpec) -> Any:
        """Host arrays as shapes on this program's devices."""
        to = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), tree)

    def state_shardings(self, state: Any) -> Any:
        """Where each array of a state, or of a model in one, lies."""
        if self.partitioned:
            return tree_shardings(state, self.mesh, RUN)
        return jax.tree.map(lambda _: NamedSharding(self.mesh, RUNS), state)


def map_sequentially(fn: Callable[..., Any], axes: Sequence[int | None], donated: bool) -> Callable[..., Any]:
    """`jax.vmap(fn, axes)`, computed for one entry of the run axis after another.

    XLA's CPU backend is slower at products and reductions with one axis more than at several without (measured: from
    7 % at dim 32 to twice the time at dim 256), and one run at a time stays in a core's cache. A run's numbers do not
    depend on how many others there are.

    Args:
        donated: the first argument is what the first result replaces; it is written in place.
    """

    def mapped(*args: Any) -> Any:
        def one(kept: Any, i: Any) -> tuple[Any, Any]:
            given = (kept, *args[1:]) if donated else args
            own = [jax.tree.map(lambda a: a[i], x) if ax == 0 else x for x, ax in zip(given, axes, strict=True)]
            if not donated:
                return kept, fn(*own)
            new, rest = fn(*own)
            return jax.tree.map(lambda a, value: a.at[i].set(value), kept, new), rest

        runs = len(jax.tree.leaves([x for x, axis in zip(args, axes, strict=True) if axis == 0])[0])
        kept, found = jax.lax.scan(one, args[0] if donated else None, jnp.arange(runs))
        return (kept, found) if donated else found

    return mapped


def stack_numbers(numbers: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The traced numbers of several runs, `{path: (runs, ...)}`, as float32."""
    return {path: np.stack([np.asarray(n[path], np.float32) for n in numbers]) for path in numbers[0]}


class ProgramCache:
    """Programs by what they are compiled for. Only the last is kept: programs hold memory on the devices."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def get(self, pack: Pack, source: Source) -> Program:
        """Return the program of a pack; `source` is its prepared task."""
        key, plan = pack.program_key, pack.plan
        if key not in self.programs:
            self.clear()
            structure, _ = split(pack.config, frozenset(plan.live))
            self.programs[key] = Program(
                structure, source, plan.layout, steps=structure.train.total_steps(source.num_windows),
                precision=plan.precision, execution=plan.compute,
            )  # fmt: skip
        return self.programs[key]

    def clear(self) -> None:
        """Free all programs."""
        self.programs.clear()
