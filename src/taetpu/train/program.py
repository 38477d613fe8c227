"""The compiled program of a pack: the functions in `train.step`, mapped over runs that differ only in traced values.

The leading run axis is sharded over devices, so devices communicate only if several devices share one run. The runs on
one device are vectorised on an accelerator, and computed one after another on a CPU core. The number of steps of a
dispatch is an input of the program. Dispatches of all sizes therefore run the same code, and results are bitwise
independent of dispatch sizes.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, Shaped

from taetpu.core.distributed import to_devices, to_host
from taetpu.core.jit import jit_often, jit_once
from taetpu.core.keys import named, root_key
from taetpu.core.static_dynamic import bind
from taetpu.data.base import Batch, Source, Split, array_shapes, evaluation_order
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.nn.embedding import check_tokens
from taetpu.nn.lm import LM
from taetpu.optim.eval_metrics import NO_METRICS, EvalMetric
from taetpu.optim.objectives import default_objective
from taetpu.optim.selection import observers, selectors
from taetpu.optim.structure_checks import evaluates_trained
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.device_capabilities import Capabilities, Device, platform_of
from taetpu.train.layout import Layout
from taetpu.train.memory import TABLE_BYTES
from taetpu.train.run_axis import DIVIDED, RUNS, SHARED, make_mesh, map_sequentially, with_local_table
from taetpu.train.sample import answer, continue_tokens
from taetpu.train.selection import Losses, first_windows, select
from taetpu.train.sharding import DATA, RUN, WHOLE, tree_shardings
from taetpu.train.step import (
    Arrays,
    StepContext,
    TrainState,
    evaluate,
    evaluated_model,
    init_state,
    observe,
    train_step,
)

Value: TypeAlias = float | Sequence[float] | Float[np.ndarray, "..."]
"""One traced value of one run."""
Numbers: TypeAlias = Mapping[str, Float[Array, "run ..."] | Float[np.ndarray, "run ..."]]
"""The traced values of all runs, by path."""
Seeds: TypeAlias = Int[Array, " run"] | Int[np.ndarray, " run"]
Rows: TypeAlias = Int[Array, "run chunk batch"] | Int[np.ndarray, "run chunk batch"]
"""The places in a task's arrays of the windows (training sequences) in the batches of the next steps."""
StepRows: TypeAlias = Int[Array, "run batch"] | Int[np.ndarray, "run batch"]
"""The places of the windows in the batch of one step."""
Count: TypeAlias = np.int32 | Int[Array, ""]

StartArrays: TypeAlias = Mapping[str, Float[Array, "run ..."]]
"""The parameters that runs start from, by logical name; empty if all are drawn."""
NO_START: StartArrays = {}

InitFn: TypeAlias = Callable[..., TrainState]
AdvanceFn: TypeAlias = Callable[
    [TrainState, Numbers, Seeds, Rows, Count, Arrays], tuple[TrainState, dict[str, Float[Array, "run chunk"]]]
]
ObserveFn: TypeAlias = Callable[[TrainState, Numbers, Seeds, StepRows, Arrays], dict[str, Float[Array, " run"]]]
EvaluateFn: TypeAlias = Callable[[LM, Batch, Count], dict[str, Float[Array, "run batches batch ..."]]]
AnswerFn: TypeAlias = Callable[
    [LM, Int[np.ndarray, "batches batch seq"], Int[np.ndarray, "batches batch"]], Int[Array, "run batches batch new"]
]
SelectFn: TypeAlias = Callable[
    [TrainState, Numbers, Seeds, Batch | None], tuple[TrainState, dict[str, Float[Array, " run"]]]
]
SampleFn: TypeAlias = Callable[[LM, Seeds, Count, Int[np.ndarray, " start"]], Int[Array, "run length"]]

Progress: TypeAlias = tuple[TrainState, dict[str, Float[Array, " chunk"]]]
"""The state of a run, and its metrics in a dispatch."""

Result = TypeVar("Result")


class Shapes(NamedTuple):
    """The arguments of a program's functions as `jax.ShapeDtypeStruct`s.

    Attributes:
        init: the arguments of `Program.init`.
        advance: the arguments of `Program.advance`.
        evaluate: the arguments of `Program.evaluate`; None if there is no evaluation set.
    """

    init: tuple[PyTree, ...]
    advance: tuple[PyTree, ...]
    evaluate: tuple[PyTree, ...] | None


class Program:
    """The compiled functions for one config structure and one layout.

    Args:
        structure: the config with placeholders for its traced values.
        source: the prepared task.
        layout: the number of runs and their devices.
        steps: the number of optimizer steps of a whole run.
        precision: dtype of activations and matrix products, `float32` or `bfloat16`.
        execution: the compute options of the model.
        chunk: the maximum number of steps per dispatch.
        on: the devices to use; all devices by default. Programs for devices of a topology description can be compiled,
            but not run.
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
        on: Sequence[Device] | None = None,
    ):
        self.structure, self.source, self.steps, self.width, self.chunk = structure, source, steps, layout.width, chunk
        self.mesh, self.division = make_mesh(layout, on)
        self.partitioned, self.from_host = layout.divided, execution.feed == "host"
        self.dtype, self.execution = jnp.dtype(precision), execution
        capabilities = Capabilities(platform_of(self.mesh.devices.flat[0]))
        capabilities.check_path(execution.attention, remedy="Resume this pack on the kind of device it was started on.")
        self.observers: dict[int, ObserveFn] = {}
        self.answers: dict[int, AnswerFn] = {}
        self.model_shardings: dict[Hashable, PyTree] = {}  # shardings of evaluated models, by structure

    @cached_property
    def arrays(self) -> dict[str, jax.Array]:
        """The arrays of the task, replicated on every device. Programs with the feed `host` read tables instead."""
        return to_devices(dict(self.source.arrays), NamedSharding(self.mesh, SHARED))

    @property
    def shards(self) -> int:
        """The number of parts of the pack that have a table each: the parts on one device, or whole runs."""
        return self.width if self.partitioned else self.mesh.shape[RUN]

    @cached_property
    def table_steps(self) -> int:
        """The number of steps whose windows a table holds: `chunk`, or fewer if a table would be too large."""
        window = sum(prod(a.shape[1:]) * a.dtype.itemsize for a in array_shapes(self.source).values())
        step = self.width // self.shards * self.structure.train.batch_size * window
        return max(1, min(self.chunk, TABLE_BYTES // step))

    @cached_property
    def data_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and shardings of the arrays that a dispatch reads: those of the task, or tables.

        The tables are arrays `(shards, windows, ...)` with room for the windows of each run in `table_steps` steps.
        """
        shapes = array_shapes(self.source)
        if not self.from_host:
            return self.abstract(shapes, SHARED)
        windows = self.width // self.shards * self.table_steps * self.structure.train.batch_size
        tables = {
            name: jax.ShapeDtypeStruct((self.shards, windows, *a.shape[1:]), a.dtype) for name, a in shapes.items()
        }
        return self.abstract(tables, RUNS)

    def map_over_runs(
        self,
        fn: Callable[..., Result],
        shared: Sequence[int] = (),
        donate: Sequence[int] = (),
        divided: Sequence[int] = (),
        reads_data: bool = False,
        once: bool = False,
    ) -> Callable[..., Result]:
        """Return a jitted function that maps `fn` over runs.

        Args:
            fn: a function of one run.
            shared: indices of the arguments that have no run axis.
            donate: indices of the donated arguments.
            divided: indices of the arguments that have no run axis, and whose second axis is divided over a run's
                devices.
            reads_data: whether the last argument is the training data (see `data_shapes`). Arrays are shared by all
                runs, and a table by the runs of its shard.
            once: whether the function is called only once, so that compilation should be quick.
        """
        platform, reads_table = self.mesh.devices.flat[0].platform, reads_data and self.from_host

        def mapped(*args: PyTree) -> PyTree:
            alike = (*shared, *divided, *([len(args) - 1] if reads_data and not self.from_host else []))
            axes = tuple(None if i in alike else 0 for i in range(len(args)))
            if self.partitioned:
                results = jax.vmap(fn, in_axes=axes, spmd_axis_name=RUN)(*args)
                return jax.lax.with_sharding_constraint(results, self.state_shardings(results))
            specs = tuple(DIVIDED if i in divided else RUNS if axis == 0 else SHARED for i, axis in enumerate(axes))
            axes = (*axes[:-1], None) if reads_table else axes
            f = map_sequentially(fn, axes, bool(donate)) if platform == "cpu" else jax.vmap(fn, in_axes=axes)
            f = with_local_table(f) if reads_table else f
            return jax.shard_map(f, mesh=self.mesh, in_specs=specs, out_specs=RUNS, check_vma=False)(*args)

        # Name the program in traces and dumps: `Program.advance.<locals>.take_steps` becomes `advance`.
        mapped.__name__ = getattr(fn, "func", fn).__qualname__.removeprefix("Program.").split(".")[0]
        form: dict[str, Any] = {"donate_argnums": tuple(donate)}
        if not self.partitioned:
            # Set explicitly: on one device, JAX may otherwise return unsharded results and then compile twice.
            form["out_shardings"] = NamedSharding(self.mesh, RUNS)
        return (jit_once if once else jit_often)(mapped, platform=platform, **form)

    def place(self, tree: PyTree) -> PyTree:
        """Move host arrays with a leading run axis to the pack's devices and return them."""
        return to_devices(tree, NamedSharding(self.mesh, RUNS))

    @property
    def local_runs(self) -> set[int]:
        """The indices in the pack of the runs on this process's devices."""
        places = NamedSharding(self.mesh, RUNS).addressable_devices_indices_map((self.width,))
        return {i for index in places.values() if index for i in range(self.width)[index[0]]}

    @cached_property
    def init(self) -> InitFn:
        """The function `(numbers, seeds, start={}) -> state` that initialises the runs.

        `start` holds the values of parameters that are loaded instead of drawn, by logical name.
        """

        def first(
            numbers: Mapping[str, Array], seed: Int[Array, ""], start: Mapping[str, Float[Array, "..."]] = NO_START
        ) -> TrainState:
            return self.execution.apply(init_state(bind(self.structure, numbers), self.source, seed, start))

        return self.map_over_runs(first, once=True)

    def context(self, numbers: Mapping[str, Array], seed: Int[Array, ""], arrays: Arrays) -> StepContext:
        """Return the context of one run's steps."""
        config = bind(self.structure, numbers)
        return StepContext(config, self.source, arrays, seed, self.steps, self.dtype, self.division)

    @cached_property
    def advance(self) -> AdvanceFn:
        """The function `(state, numbers, seeds, rows, count, arrays) -> (state, metrics)` that trains the runs.

        The runs are trained on the first `count` steps of `rows`, which are places in `arrays` (see `data_shapes`). The
        state is donated.
        """

        def take_steps(
            state: TrainState, numbers: Mapping[str, Array], seed: Int[Array, ""], rows: Int[Array, "chunk batch"],
            count: Int[Array, ""], arrays: Arrays,
        ) -> Progress:  # fmt: skip
            context = self.context(numbers, seed, arrays)
            # The step is traced once, which gives the shapes of its metrics as well.
            step: Any = eqx.filter_closure_convert(lambda s, row: train_step(s, row, context), state, rows[0])
            _, shapes = step.out_struct
            log = {name: jnp.zeros((self.chunk, *shape.shape), shape.dtype) for name, shape in shapes.items()}

            def body(i: Int[Array, ""], carry: Progress) -> Progress:
                state, log = carry
                state, metrics = step(state, rows[i])
                return state, {name: log[name].at[i].set(metrics[name]) for name in log}

            if state.stopped_at is not None:  # a run that stopped takes no steps while the others of its pack do
                count = jnp.where(state.stopped_at < 0, count, 0)
            return jax.lax.fori_loop(0, count, body, (state, log))

        return self.map_over_runs(take_steps, shared=(4,), donate=(0,), reads_data=True)

    @cached_property
    def select(self) -> SelectFn:
        """The function `(state, numbers, seeds, windows) -> (state, losses)` that lets runs choose.

        See `train.selection.select`. The state is donated.
        """

        def select_one(
            state: TrainState, numbers: Mapping[str, Array], seed: Int[Array, ""], windows: Batch | None
        ) -> tuple[TrainState, Losses]:
            return select(state, windows, self.context(numbers, seed, {}))

        return self.map_over_runs(select_one, donate=(0,), divided=(3,))

    @cached_property
    def selection_set(self) -> Batch | None:
        """The first validation windows as device arrays `(batches, batch, seq)`; None if no run chooses by them.

        Batches have the same size whatever the number of windows on which runs are evaluated, so that neither the
        losses nor the choices depend on it.
        """
        count = max((component.windows for component in selectors(self.structure.train).values()), default=0)
        windows = self.windows("val", count) if count else None
        return None if windows is None else to_devices(first_windows(windows, count), NamedSharding(self.mesh, DIVIDED))

    def observe(self, every: int) -> ObserveFn:
        """Return the function `(state, numbers, seeds, rows, arrays) -> values` that measures metrics.

        Only metrics with the interval `every` are measured. `rows` are the places in `arrays` of the next step's batch.
        """
        if every not in self.observers:
            due = {name: metric for name, metric in self.structure.train.metrics.items() if metric.every == every}

            def observe_one(
                state: TrainState, numbers: Mapping[str, Array], seed: Int[Array, ""], rows: Int[Array, " batch"],
                arrays: Arrays,
            ) -> dict[str, Float[Array, ""]]:  # fmt: skip
                context = self.context(numbers, seed, arrays)
                return observe(state, rows, due, context if self.partitioned else replace(context, division=WHOLE))

            observe_one.__qualname__ = f"observe_{every}"
            self.observers[every] = self.map_over_runs(observe_one, reads_data=True)
        return self.observers[every]

    def evaluated(self, state: TrainState, numbers: Numbers) -> LM:
        """Return the models to evaluate, sample and store, which are the trained models by default."""
        train = self.structure.train
        if evaluates_trained(train.optimizer) and "evaluate" not in observers(train):
            return state.model
        return self.evaluated_models(state, numbers)

    @cached_property
    def evaluated_models(self) -> Callable[[TrainState, Numbers], LM]:
        """The function `(state, numbers) -> models` that applies `train.step.evaluated_model` to the runs."""
        return self.map_over_runs(lambda state, numbers: evaluated_model(state, bind(self.structure, numbers)))

    @cached_property
    def evaluate(self) -> EvaluateFn:
        """The function `(model, windows, count) -> sums` that evaluates the first `count` batches of `evaluation_set`.

        Since `count` is an input, a sample and the whole split share one program.
        """
        return self._evaluate_with(self.structure.train.eval_metrics)

    @cached_property
    def evaluate_once(self) -> EvaluateFn:
        """The function `evaluate`, for models whose structure is that of no trained model."""
        return self._evaluate_with(self.structure.train.eval_metrics, once=True)

    @cached_property
    def score(self) -> EvaluateFn:
        """The function `evaluate` without metrics other than loss and accuracy, for the sequences of items."""
        return self._evaluate_with(NO_METRICS)

    def _evaluate_with(self, metrics: Mapping[str, EvalMetric], once: bool = False) -> EvaluateFn:
        objective = default_objective(self.structure.task)
        return self.map_over_runs(
            partial(evaluate, dtype=self.dtype, division=self.division, metrics=metrics, objective=objective),
            shared=(2,), divided=(1,), once=once,
        )  # fmt: skip

    def answer(self, new: int) -> AnswerFn:
        """Return the function `(model, prompts, lengths) -> tokens` that generates `new` tokens after prompts."""
        if new not in self.answers:
            self.answers[new] = self.map_over_runs(partial(answer, new=new, dtype=self.dtype), shared=(1, 2))
        return self.answers[new]

    def evaluate_on_host(
        self, model: LM, windows: Batch, count: int, *, items: bool = False
    ) -> dict[str, Float[np.ndarray, "run sequence ..."]]:
        """Return the sums of each sequence in the first `count` batches as float64 on the host; 0 for other sequences.

        Args:
            model: the models with a leading run axis. Models on the host are placed like the models in training. Those
                with another structure are evaluated by a program that compiles quickly.
            windows: the evaluation set.
            count: the number of batches to evaluate.
            items: whether the sequences are those of items.
        """
        structure, known = jax.tree.structure(model), True
        if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(model)):
            known = structure in self.model_shardings  # an equivalent but unequal sharding recompiles
            shardings = self.model_shardings[structure] if known else self.state_shardings(model)
            model = jax.tree.map(to_devices, model, shardings)
        else:
            self.model_shardings[structure] = jax.tree.map(lambda a: a.sharding, model)
        evaluate = self.score if items else self.evaluate if known else self.evaluate_once
        on_devices = evaluate(model, windows, np.int32(count))
        on_host = {name: to_host(sums).astype(np.float64) for name, sums in on_devices.items()}
        return {name: sums.reshape(self.width, -1, *sums.shape[3:]) for name, sums in on_host.items()}

    @cached_property
    def sample(self) -> SampleFn:
        """The function `(model, seeds, step, prompt) -> tokens` that continues the prompt with each run's model."""
        settings = self.structure.train.sample
        assert settings is not None  # checked by callers

        def sample_one(model: LM, seed: Int[Array, ""], step: Int[Array, ""], prompt: Int[Array, " start"]) -> Array:
            key = named(root_key(seed), "sample", step)
            return continue_tokens(
                model, prompt, key, length=settings.tokens, window=self.source.seq_len,
                temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
            )  # fmt: skip

        return self.map_over_runs(sample_one, shared=(2, 3))

    def evaluation_set(self, split: str, most: int | None = None) -> Batch | None:
        """Return the windows of a split as device arrays `(batches, batch, seq)`; None if the task has no such split.

        The windows are ordered by `evaluation_order` and padded with windows of weight 0.

        Args:
            split: the name of the split.
            most: the maximum batch size. The batch size never exceeds the batch size of training.
        """
        windows = self.windows(split, most)
        return None if windows is None else to_devices(windows, NamedSharding(self.mesh, DIVIDED))

    def windows(self, split: str, most: int | None = None) -> Batch | None:
        """Return the windows of `evaluation_set` as host arrays."""
        data = self.source.evaluation(split)
        return None if data is None else self.batched(data, evaluation_order(len(data.tokens)), most)

    def batched(
        self, data: Split, order: Int[np.ndarray, " sequence"], most: int | None = None, *, fill: bool = False
    ) -> Batch:
        """Return sequences in an order as host arrays `(batches, batch, seq)`; see `evaluation_set`.

        Batches of longer sequences than in training have no more tokens than those of training. With `fill`, batches
        of shorter sequences have as many.
        """
        at = self.source.interface
        for ids, size in (data.tokens, at.vocab_size), (data.targets, at.output_size), (data.types, at.types):
            if ids is not None and ids.dtype.kind == "i":
                check_tokens(ids, size)  # a compiled gather clips indices silently
        parts = self.mesh.shape[DATA]
        wanted = min(len(data.tokens), most or len(data.tokens))
        length, most_sequences = data.tokens.shape[1], self.structure.train.batch_size
        if fill or length > self.source.seq_len:
            most_sequences = max(most_sequences * self.source.seq_len // length // parts, 1) * parts
        size = min(most_sequences, -(-wanted // parts) * parts)
        if (group := self.structure.task.eval_group) is not None:
            size = group
        missing = -len(data.tokens) % size

        def batched(a: Shaped[np.ndarray, "windows ..."]) -> Shaped[np.ndarray, "batches batch ..."]:
            return np.pad(a[order], ((0, missing), *[(0, 0)] * (a.ndim - 1))).reshape(-1, size, *a.shape[1:])

        return jax.tree.map(batched, data.batch)

    def shapes(self, numbers: Mapping[str, Value]) -> Shapes:
        """Return the shapes and shardings of the compiled functions' arguments, without any computation.

        Args:
            numbers: the traced values of one run (see `core.static_dynamic.split`).
        """
        rows = (self.width, self.chunk, self.structure.train.batch_size)
        stacked = self.abstract(stack_numbers([numbers] * self.width), RUNS)
        seeds = self.abstract(np.zeros(self.width, np.int32), RUNS)
        state = jax.eval_shape(self.init, stacked, seeds)
        state = jax.tree.map(
            lambda a, to: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), state, self.state_shardings(state)
        )
        sets = [w for w in map(self.windows, self.structure.task.evaluation_sets) if w is not None]
        windows = max(sets, key=lambda w: w.weights.shape[-1], default=None)
        return Shapes(
            init=(stacked, seeds),
            advance=(state, stacked, seeds, self.abstract(np.zeros(rows, np.int32), RUNS),
                     self.abstract(np.int32(0), SHARED), self.data_shapes),
            evaluate=None if windows is None else (state.model, self.abstract(windows, DIVIDED),
                                                        self.abstract(np.int32(0), SHARED)),
        )  # fmt: skip

    def abstract(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        """Return the shapes of host arrays, with a sharding over the program's devices."""
        to = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), tree)

    def state_shardings(self, state: PyTree) -> PyTree:
        """Return the shardings of a training state, or of the model in a training state."""
        if self.partitioned:
            return tree_shardings(state, self.mesh, RUN)
        return jax.tree.map(lambda _: NamedSharding(self.mesh, RUNS), state)


def stack_numbers(numbers: Sequence[Mapping[str, Value]]) -> dict[str, Float[np.ndarray, "run ..."]]:
    """Return the traced values of several runs as float32 arrays with a leading run axis, by path."""
    return {path: np.stack([np.asarray(n[path], np.float32) for n in numbers]) for path in numbers[0]}
