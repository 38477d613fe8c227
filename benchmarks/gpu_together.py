"""The steps of several packs on one GPU: one program that advances all of them, beside their programs in turn.

A contestant has the packs of a study, each with the program and the data that training uses, and advances each by the
same number of steps in a window. With one program, a step of each pack is in the body of one loop, or each pack has a
loop in the program. XLA records the kernels of a loop's body into command buffers (CUDA graphs), by default in their
order. `CONCURRENT` lets kernels that do not depend on each other run at once, and `WHILE` records loops too, so that
the host need not wait for the condition of each step. The flags were read in XLA's sources (`xla/xla.proto` and
`command_buffer_conversion_pass.cc` of github.com/openxla/xla), where `xla_gpu_graph_enable_concurrent_region` is
deprecated and sets `CONCURRENT`.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import Timed, turns_of_survivors, why
from taetpu.core.child_process import ChildFailed
from taetpu.core.jax_setup import prepare_jax

COMMAND = (sys.executable, "-m", "benchmarks.gpu_together")
DISPATCHES = 8  # of a window
CONCURRENT = "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT"
WHILE = "--xla_gpu_enable_command_buffer=+WHILE"


class Together(NamedTuple):
    """How packs are advanced.

    Attributes:
        name: Its name in the table.
        form: `in turn`, `one loop` or `loops`.
        flags: Flags for XLA.
    """

    name: str
    form: str
    flags: str = ""


IN_TURN = Together("steps, in turn", "in turn")
WAYS = (
    IN_TURN,
    Together("steps, one loop", "one loop"),
    Together("steps, one loop, CONCURRENT", "one loop", CONCURRENT),
    Together("steps, in turn, WHILE", "in turn", WHILE),
    Together("steps, one loop, CONCURRENT, WHILE", "one loop", f"{CONCURRENT} {WHILE}"),
    Together("steps, a loop each, CONCURRENT, WHILE", "loops", f"{CONCURRENT} {WHILE}"),
)


def load_packs(study: str, count: int) -> list[Any]:
    """Return the packs of the first structures of a study file as step timers that have compiled nothing."""
    from taetpu.study.loading import load_study
    from taetpu.train.layout import Layout, group_runs
    from taetpu.train.step_time import StepTimer, step_workload

    class Pack(StepTimer):
        """A pack whose steps are taken together with those of others."""

        def train(self) -> float:
            return 0.0

    loaded = load_study(Path(study), {"train.steps": 10**6})
    packs = []
    for group in group_runs(loaded.runs())[:count]:
        work = step_workload(group.runs, loaded.sources.prepare(group.runs[0].config))
        layout = Layout(work.size)
        how = {"live": group.live, "precision": work.precision, "execution": work.execution}
        packs.append(Pack(work.config, work.source, layout, **how))
    return packs


def one_loop(advances: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function `(states, rest, count) -> (states, metrics)` whose loop takes a step of each pack.

    Args:
        advances: `Program.advance` of each pack. `rest` holds the arguments of each but the state, `count` included.
    """
    import jax
    import jax.numpy as jnp

    def together(states: Any, rest: Any, count: Any) -> Any:
        def step(i: Any, states: Any) -> list[Any]:
            results = []
            for advance, state, (numbers, seeds, rows, _, arrays) in zip(advances, states, rest, strict=True):
                rows = jax.lax.dynamic_slice_in_dim(jnp.asarray(rows), i, 1, axis=1)
                results.append(advance(state, numbers, seeds, rows, jnp.int32(1), arrays))
            return results

        def body(i: Any, carry: Any) -> Any:
            states, logs = carry
            results = step(i, states)
            new = [{name: log[name].at[:, i].set(metrics[name][:, 0]) for name in log}
                   for log, (_, metrics) in zip(logs, results, strict=True)]  # fmt: skip
            return [state for state, _ in results], new

        shapes = jax.eval_shape(step, jnp.int32(0), states)
        logs = [{name: jnp.zeros(a.shape, a.dtype) for name, a in metrics.items()} for _, metrics in shapes]
        return jax.lax.fori_loop(0, count, body, (states, logs))

    return jax.jit(together, donate_argnums=0)


def loops(advances: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function of `one_loop` with a loop for each pack."""
    import jax

    return jax.jit(in_turn(advances), donate_argnums=0)


def in_turn(advances: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function of `one_loop` that calls the program of each pack."""

    def each(states: Any, rest: Any, count: Any) -> Any:
        results = [advance(state, *args[:3], count, args[4])
                   for advance, state, args in zip(advances, states, rest, strict=True)]  # fmt: skip
        return [state for state, _ in results], [metrics for _, metrics in results]

    return each


FORMS = {"in turn": in_turn, "one loop": one_loop, "loops": loops}


class Packs:
    """Packs in training on jax's first device."""

    def __init__(self, study: str, count: int, form: str):
        import numpy as np

        packs = load_packs(study, count)
        self.size = min(pack.most for pack in packs)
        self.states = [pack.state for pack in packs]
        self.rest = [(pack.numbers, pack.seeds, pack.rows, np.int32(self.size), pack.arrays) for pack in packs]
        self.advance = FORMS[form]([pack.program.advance for pack in packs])
        self.take(1)  # compiles

    def take(self, dispatches: int) -> None:
        import jax
        import numpy as np

        for _ in range(dispatches):
            self.states, self.metrics = self.advance(self.states, self.rest, np.int32(self.size))
        jax.block_until_ready((self.states, self.metrics))

    def window(self, dispatches: int) -> dict[str, Any]:
        """Return the seconds of some dispatches, and a digest of all states and of the metrics of the last dispatch."""
        import jax
        import numpy as np

        began = time.perf_counter()
        self.take(dispatches)
        seconds = time.perf_counter() - began
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves((self.states, self.metrics)):
            digest.update(np.asarray(leaf).tobytes())
        return {"seconds": seconds, "steps": dispatches * self.size, "digest": digest.hexdigest()}


def measure_together(
    study: Path, count: int, environ: Callable[[str], Mapping[str, str]], rounds: int, deadline: float,
    ways: Sequence[Together] = WAYS,
) -> tuple[dict[str, Timed], list[dict[str, Any]], dict[str, str]]:  # fmt: skip
    """Return the contestants that started, their windows by round, and why others failed.

    Args:
        study: The study file.
        count: The number of packs.
        environ: The environment of a contestant with the given flags for XLA.
        rounds: The number of windows of each.
        deadline: When contestants are killed, on the monotonic clock.
        ways: The contestants.
    """
    failed = dict[str, str]()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:

        def start(way: Together) -> Timed | None:
            request = {"study": str(study), "count": count, "form": way.form}
            try:
                child = Timed(COMMAND, request, environ(way.flags), deadline)
            except (ChildFailed, MemoryError) as error:
                failed[way.name] = why(error)
                return None
            stack.callback(child.close)
            return child

        started = dict(zip((way.name for way in ways), pool.map(start, ways), strict=True))
        ready = {name: child for name, child in started.items() if child is not None}
        windows, ended = turns_of_survivors(ready, rounds, DISPATCHES)
    return ready, windows, failed | ended


def main() -> None:
    """Answer the parent's requests: how packs are advanced, then numbers of dispatches."""
    answers, sys.stdout = sys.stdout, sys.stderr
    asked = json.loads(sys.stdin.readline())
    prepare_jax()
    packs = Packs(**asked)
    print(json.dumps({"packs": len(packs.states)}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(packs.window(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
