"""The profile of a pack: a trace of a few steps from JAX's profiler, all compilations, and a summary of both.

The trace has XProf's layout, so that `tensorboard --logdir` and `xprof` find it. Profiling changes only dispatch sizes;
the results are bitwise identical.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import jax
from jax import monitoring
from jax.profiler import ProfileData, ProfileOptions, StepTraceAnnotation
from jaxtyping import PyTree

from taetpu.store.study import StudyFolder
from taetpu.train.trace import WINDOW, summarize_trace, trace_file

Summary: TypeAlias = dict[str, Any]
"""A profile's summary as plain data."""

COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX also records programs found in its cache
STEPS = "advance"  # name of the program that trains, see `train.program.Program.advance`


class Profile:
    """Traces `steps` steps after the first dispatch, and records all compilations. Profiler errors never stop training.

    The profile is a context manager around the training of a pack.

    Args:
        folder: the folder of the study. The profile is written to `profile/<pack>/<time>/` in it.
        pack: the ID of the pack.
        steps: the number of steps to trace. Fewer steps are traced if the pack ends earlier.

    Attributes:
        summary: the summary, available after the end of the pack; None if nothing was traced.
        problem: the reason why nothing was traced.
    """

    def __init__(self, folder: StudyFolder, pack: str, steps: int):
        self.folder, self.pack, self.steps = folder, pack, steps
        self.name = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f")
        self.step, self.dispatches, self.first, self.traced = 0, 0, 0, 0
        self.compiles: list[dict[str, Any]] = []
        self.path: Path | None = None
        self.open = False
        self.window: StepTraceAnnotation | None = None
        self.summary: Summary | None = None
        self.problem = "too few steps were left after the first dispatch"

    @property
    def where(self) -> str:
        """The folder of the profile."""
        return self.folder.store.where(self.folder.profile_key(self.pack, self.name))

    def __enter__(self) -> "Profile":
        monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        monitoring.unregister_event_duration_listener(self._on_event)
        self._stop()
        if kind is None and self.traced:  # an interrupted pack keeps its trace, without a summary
            with self._tried():
                self._write()

    def next_size(self, step: int, size: int, most: int, state: PyTree) -> int:
        """Start the trace if it is due, and return the size of the next dispatch.

        Args:
            step: the step that the dispatch starts at.
            size: the size of the dispatch without profiling.
            most: the maximum size of the dispatch.
            state: the state that the dispatch starts from.
        """
        self.step = step
        if self.path is None and self.dispatches:
            jax.block_until_ready(state)  # exclude earlier dispatches from the trace
            self._start(step)
        if not self.open:
            return size
        self.window = StepTraceAnnotation(WINDOW, step_num=step)
        self.window.__enter__()
        return min(self.steps - self.traced, most)

    def on_dispatch(self, size: int, result: PyTree) -> None:
        """Count the steps of a dispatch, and stop the trace after its last step. `result` may not be ready yet."""
        self.step, self.dispatches = self.step + size, self.dispatches + 1
        if self.window is not None:
            jax.block_until_ready(result)  # the trace covers this dispatch exactly
            self.window.__exit__(None, None, None)
            self.window, self.traced = None, self.traced + size
            if self.traced >= self.steps:
                self._stop()

    def affects_time(self, step: int) -> bool:
        """Return whether profiling affected the wall time of the dispatch that ended at `step`."""
        return self.path is not None and self.first <= step <= self.first + self.traced

    def _start(self, step: int) -> None:
        self.path, self.first = self.folder.store.folder(self.folder.profile_key(self.pack, self.name)), step
        options = ProfileOptions()
        options.python_tracer_level = 0  # Python calls would fill the trace and slow training
        with self._tried():
            jax.profiler.start_trace(self.path, profiler_options=options)
            self.open = True

    def _stop(self) -> None:
        if self.open:
            self.open = False
            with self._tried():
                jax.profiler.stop_trace()

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Record errors from JAX's profiler in `problem`, e.g. that another profiler is active."""
        try:
            yield
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _on_event(self, event: str, duration_secs: float, **about: object) -> None:
        """Record a compilation, and whether a program of the same name was compiled before."""
        if event == COMPILED:
            program = str(about.get("fun_name", "?")).removeprefix("jit(").removesuffix(")")
            again = any(program == known["program"] for known in self.compiles)
            again |= program == STEPS and self.dispatches > 0
            self.compiles.append({"program": program, "step": self.step, "seconds": duration_secs, "again": again})

    def _write(self) -> None:
        assert self.path is not None
        trace = trace_file(self.path)
        self.summary = {
            "pack": self.pack,
            "platform": jax.default_backend(),
            "steps": self.traced,
            "first_step": self.first,
            **summarize_trace(ProfileData.from_file(str(trace))),
            "compiles": self.compiles,
            "trace": trace.relative_to(self.path).as_posix(),
        }
        self.folder.write_profile(self.pack, self.name, self.summary, format_summary(self.summary))
        self.folder.store.save_folder(self.folder.profile_key(self.pack, self.name))


def format_summary(summary: Summary) -> str:
    """Return a summary as text."""
    import pandas as pd

    shares = "\n".join(f"  {name:<9}{summary[name]:6.1%}" for name in ("compute", "transfer", "idle"))
    return f"""\
pack {summary["pack"]}: {summary["steps"]} steps after step {summary["first_step"]}, {summary["seconds"]:.3f} s on \
{summary["devices"]} {summary["platform"].upper()} devices

{shares}

Most expensive operations (mean over devices):
{pd.DataFrame(summary["costly"]).to_string(index=False)}

Compilations (again: a program of the same name was compiled before):
{pd.DataFrame(summary["compiles"]).to_string(index=False)}

Trace: {summary["trace"]}. View it with `tensorboard --logdir .` or `xprof .` in this folder.
"""
