"""The profile of a pack: a trace of a few steps from JAX's profiler, all compilations, and a summary of both.

The trace has XProf's layout, so that `tensorboard --logdir` and `xprof` find it. Profiling changes only dispatch sizes;
the results are bitwise identical.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import jax
from jax import monitoring
from jax.profiler import ProfileData, ProfileOptions, StepTraceAnnotation
from jaxtyping import PyTree

from taetpu.store.study import StudyFolder
from taetpu.train.trace import TRANSFERS, WINDOW, summarize_trace, trace_file

Summary: TypeAlias = dict[str, Any]
"""A profile's summary as plain data."""

COMPILED = "/jax/core/compile/backend_compile_duration"  # also recorded for programs found in the cache
FROM_CACHE = "/jax/compilation_cache/cache_hits"
STEPS = "advance"  # name of the program that trains, see `train.program.Program.advance`
NAME = 56  # maximum width of an operation's name in the summary


class Profile:
    """A context manager around the training of a pack. This base class of `Tracing` records nothing."""

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass

    def next_size(self, step: int, size: int, most: int, state: PyTree) -> int:
        """Return the size of the next dispatch.

        Args:
            step: the step that the dispatch starts at.
            size: the size of the dispatch without profiling.
            most: the maximum size of the dispatch.
            state: the state that the dispatch starts from.
        """
        return size

    def on_dispatch(self, size: int, result: PyTree) -> None:
        """Handle a dispatch of `size` steps after it was issued; `result` is its future result."""

    def affects_time(self, step: int) -> bool:
        """Return whether profiling affected the wall time of the dispatch that ended at `step`."""
        return False


OFF = Profile()


@dataclass(frozen=True)
class Compile:
    """A compilation during the training of a pack.

    Attributes:
        program: the name of the program in traces and dumps. The training program is called `advance`.
        step: the number of steps dispatched before the compilation.
        seconds: the duration of the compilation.
        cached: whether the program was found in the compilation cache.
        again: whether a program with the same name was compiled before, for this pack or, in the case of `advance`,
            for an earlier dispatch.
    """

    program: str
    step: int
    seconds: float
    cached: bool
    again: bool


class Tracing(Profile):
    """Traces `steps` steps after the first dispatch, and records all compilations. Profiler errors never stop training.

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
        self.step, self.dispatches, self.traced = 0, 0, 0
        self.first = 0
        self.compiles: list[Compile] = []
        self.cached, self.open = False, False
        self.window: StepTraceAnnotation | None = None
        self.path: Path | None = None
        self.summary: Summary | None = None
        self.problem = "too few steps were left after the first dispatch"

    @property
    def where(self) -> str:
        """The folder of the profile; empty before tracing starts."""
        return self.folder.profile_where(self.pack, self.path.name) if self.path else ""

    def __enter__(self) -> "Tracing":
        monitoring.register_event_duration_secs_listener(self._compiled)
        monitoring.register_event_listener(self._noted)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        monitoring.unregister_event_duration_listener(self._compiled)
        monitoring.unregister_event_listener(self._noted)
        self._stop()
        if kind is None and self.traced:  # an interrupted pack keeps its trace, without a summary
            with self._tried():
                self._write()

    def next_size(self, step: int, size: int, most: int, state: PyTree) -> int:
        """Start the trace if it is due, and return the dispatch size that fits into its window."""
        self.step = step
        if self.open or (self.path is None and self.dispatches):
            if not self.open:
                jax.block_until_ready(state)  # exclude earlier dispatches from the trace
                self._start(step)
            if not self.open:
                return size
            self.window = StepTraceAnnotation(WINDOW, step_num=step)
            self.window.__enter__()
            return min(self.steps - self.traced, most)
        return size

    def on_dispatch(self, size: int, result: PyTree) -> None:
        """Count the dispatched steps, and stop the trace at the end of its window."""
        self.step, self.dispatches = self.step + size, self.dispatches + 1
        if self.window is not None:
            jax.block_until_ready(result)  # the trace covers this dispatch exactly
            self.window.__exit__(None, None, None)
            self.window, self.traced = None, self.traced + size
            if self.traced >= self.steps:
                self._stop()

    def affects_time(self, step: int) -> bool:
        """Return whether a step lies in the traced range or at its border."""
        return self.path is not None and self.first <= step <= self.first + self.traced

    def _start(self, step: int) -> None:
        self.path, self.first = new_folder(self.folder, self.pack), step
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

    def _compiled(self, event: str, duration_secs: float, **about: object) -> None:
        if event == COMPILED:
            program = str(about.get("fun_name", "?")).removeprefix("jit(").removesuffix(")")
            again = any(program == known.program for known in self.compiles)
            again |= program == STEPS and self.dispatches > 0
            self.compiles.append(Compile(program, self.step, duration_secs, self.cached, again))
            self.cached = False

    def _noted(self, event: str, **_: object) -> None:
        self.cached |= event == FROM_CACHE

    def _write(self) -> None:
        assert self.path is not None
        trace = trace_file(self.path)
        reading = summarize_trace(ProfileData.from_file(str(trace)))
        self.summary = {
            "pack": self.pack,
            "steps": self.traced,
            "steps_wanted": self.steps,
            "first_step": self.first,
            **asdict(reading),
            "compiles": [asdict(one) for one in self.compiles],
            "trace": trace.relative_to(self.path).as_posix(),
        }
        self.folder.write_profile(self.pack, self.path.name, self.summary, format_summary(self.summary))
        self.folder.save_profile(self.pack, self.path.name)


def new_folder(folder: StudyFolder, pack: str) -> Path:
    """Return a new folder `profile/<pack>/<time>/`."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    number, name = 1, now
    while folder.has_profile(pack, name):
        number += 1
        name = f"{now}-{number}"
    return folder.profile_folder(pack, name)


# --- text ------------------------------------------------------------------------------------------------------------


def format_summary(found: Summary) -> str:
    """Return a summary as text."""
    short = "" if found["steps"] == found["steps_wanted"] else f" (of {found['steps_wanted']}: no more were left)"
    lines = [
        f"pack {found['pack']}: {found['steps']} steps{short} after step {found['first_step']}, "
        f"{found['seconds']:.3f} s on {found['devices']} {found['platform'].upper()} devices",
        "(from the issue of a dispatch to its result, with what the host does for it; evaluations left out)",
        "",
        f"  compute   {found['compute']:6.1%}",
        f"  transfer  {found['transfer']:6.1%}  with nothing computed meanwhile",
        f"  idle      {found['idle']:6.1%}  no operation ran",
        "",
        "transfers, those beside compute included:",
        *(f"  {kind:<17} {_format_seconds(found['transfers'][kind])}" for kind in TRANSFERS),
        "",
        "operations that took longest, a device's mean:",
        *(f"  {op['share']:6.1%}  {op['seconds']:9.4f} s  {op['times']:>7} times  {op['name'][:NAME]}"
          for op in found["costly"]),
        "",
        *_format_compiles(found["compiles"]),
        *_platform_notes(found),
        "",
        f"the trace: {found['trace']}; `tensorboard --logdir .` or `xprof .` in this folder shows it",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _format_seconds(value: float | None) -> str:
    return "  not told" if value is None else f"{value:9.4f} s"


def _format_compiles(found: list[Summary]) -> list[str]:
    again = [one for one in found if one["again"]]
    total = sum(one["seconds"] for one in found)
    lines = [f"compiles while the pack was trained: {len(found)}, {total:.1f} s; recompiles among them: {len(again)}"]
    for one in found:
        kept = ", from the cache" if one["cached"] else ""
        more = "  RECOMPILED" if one["again"] else ""
        lines.append(f"  after step {one['step']:>6}  {one['seconds']:7.2f} s  {one['program']}{kept}{more}")
    if again:
        lines.append(
            "  a program is compiled again where the shapes of what it takes change, or the caches were cleared"
        )
    return lines


def _platform_notes(found: Summary) -> list[str]:
    """Return notes on the limitations of traces on this platform."""
    if found["platform"] == "cpu":
        return [
            "",
            "A CPU's trace tells less. Its devices are threads of this process: there are no transfers from and to the",
            "host, waiting for another thread counts as idle, and what other processes take cannot be told apart.",
        ]
    if found["platform"] == "tpu":
        return ["", "Transfers from and to a TPU's host are as its runtime tells them, for all devices together."]
    return []
