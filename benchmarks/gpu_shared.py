"""Small packs of different structures that share one NVIDIA GPU, in three ways, compared with one after another.

`python -m benchmarks.gpu_shared` prints one table within `--minutes`. Its rows are of two kinds:

- Whole studies of four structures and four seeds, from the command to the report, with several packs at once: in
  threads of one process (`TAETPU_PACKS_PER_GPU`), or in one process each (`taetpu run --shard I/N`), without and with
  MPS (see `benchmarks.mps`). `cold` is the time of the first run, which compiles and autotunes. Rows without it
  load the programs that the first row has compiled. `ratio` is a row's time divided by that of the first row, the
  median over rounds.
- `steps`: training steps of the same packs alone, in their programs in turn and in one program (see
  `benchmarks.gpu_together`). `cold` is the time until the first steps are taken, `warm` that of a window.

Values are those of the primary metric, or in rows of steps the states and losses. The command fails if they are not the
same bits in all rows. Each contestant has a deadline, and one that fails leaves the others. What fits into the time
first are the rows with the most packs. `--device cpu --small` goes through all of it at tiny sizes; packs never share
a CPU, so its figures mean nothing.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.contest import why
from benchmarks.gpu_levers import environ
from benchmarks.gpu_together import IN_TURN, WAYS, Together, measure_together
from benchmarks.mps import Mps, MpsFailed, mps, without_mps
from taetpu.core.child_process import ChildFailed

NAME = "shared"
STUDY = """\
study: shared
base:
  task: {kind: copy, seq_len: SEQ, min_length: 2, max_length: 6, eval_size: 64}
  model: {dim: DIM, num_layers: 2, mixer: {kind: attention, num_heads: 4}}
  train: {steps: STEPS, batch_size: 8, sample: none}
seeds: 4
arms:
  relu: {model.ffn: relu}
  layer-norm: {model.norm: layer}
  alibi: {model.position: alibi}
"""
SIZES = {"SEQ": 128, "DIM": 128, "STEPS": 6000}
SMALL = {"SEQ": 16, "DIM": 16, "STEPS": 8}
MEMORY = 0.9  # of the GPU, divided among processes
FIRST, LATE, STEPS_SHARE = 0.4, 2.0, 0.35
"""Shares of all minutes that the first study and the rows of steps may take, and the multiple of the first study's
time after which others are killed."""
SLACK = 10.0  # seconds


class Way(NamedTuple):
    """How a study is run.

    Attributes:
        name: Its name in the table.
        packs: Packs that train at once.
        processes: Whether each of them has a process.
        shares: Whether the processes use MPS.
        cold: Whether it is also run with an empty cache.
    """

    name: str
    packs: int = 1
    processes: bool = False
    shares: bool = False
    cold: bool = False


@dataclass
class Row:
    """A row of the table, whose times are in seconds. `same` is None until values are compared."""

    name: str
    packs: int
    cold: float | None = None
    warm: list[float] = field(default_factory=list)
    ratio: float | None = None
    same: bool | None = None
    failed: str = ""


ONE = Way("one after another", cold=True)


def ways(at_once: Sequence[int]) -> list[Way]:
    """Return how the study is run, the most packs first."""
    found = [ONE]
    for packs in sorted(set(at_once), reverse=True):
        most = packs == max(at_once)
        found += [
            Way("threads", packs, cold=most), Way("processes, MPS", packs, processes=True, shares=True),
            Way("processes", packs, processes=True, cold=most),
        ]  # fmt: skip
    return found


def run_together(commands: Sequence[Sequence[str]], environment: Mapping[str, str], deadline: float) -> float:
    """Run commands at once and return the seconds until all have ended. None of them outlives the call.

    Raises:
        ChildFailed: if one ends with another code than 0.
        MemoryError: if one is killed, or the deadline on the monotonic clock is reached.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in commands]
        running = []
        for command, error in zip(commands, errors, strict=True):
            process = subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True,
                                       stdout=subprocess.DEVNULL, stderr=error)  # fmt: skip
            stack.callback(end_group, process)
            running.append((process, error))
        while running:
            for process, error in running:
                code = process.poll()
                if code is not None and code < 0:
                    raise MemoryError(f"killed by {signal.Signals(-code).name}")
                if code:
                    error.seek(0)
                    raise ChildFailed(f"the process ended with code {code}: {error.read()[-2000:]}")
            running = [each for each in running if each[0].returncode is None]
            if running and time.monotonic() > deadline:
                raise MemoryError("the deadline")
            time.sleep(0.02)
        return time.monotonic() - began


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that still runs, with the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_study(
    way: Way, study: Path, number: int, cache: Path, device: str, deadline: float
) -> tuple[float, dict[str, float]]:
    """Run the study in fresh processes; return the seconds, and the primary metric of each run.

    Raises:
        ChildFailed, MemoryError: As `run_together`.
        MpsFailed: if MPS was asked for and not used.
    """
    root = study.parent / f"{way.name}-{way.packs}-{number}".replace(" ", "")
    command = [sys.executable, "-m", "taetpu", "run", str(study)]
    more = {"TAETPU_PACKS_PER_GPU": "1" if way.processes else str(way.packs), "TAETPU_CACHE": str(cache),
            "TAETPU_ROOT": str(root), "JAX_PLATFORMS": device, **without_mps(study.parent)}  # fmt: skip
    commands = [command]
    if way.processes:
        more["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{MEMORY / way.packs:.3f}"
        commands = [[*command, "--shard", f"{share}/{way.packs}"] for share in range(way.packs)]
    with ExitStack() as stack:
        daemon: Mps | None = stack.enter_context(mps()) if way.shares else None
        seconds = run_together(commands, {**os.environ, **more, **(daemon.environ if daemon else {})}, deadline)
        if daemon and not daemon.servers():
            raise MpsFailed("no process used MPS")
    results = json.loads((root / NAME / "results.json").read_text())
    return seconds, {f"{arm['name']}/{run['seed']}": run["value"] for arm in results["arms"] for run in arm["runs"]}


@dataclass
class Studies:
    """The runs of a study in several ways.

    Attributes:
        study: The study file.
        ways: How it is run; the first is the one that others are compared with.
        device: The value of `JAX_PLATFORMS`.
        began: When the table was begun, on the monotonic clock.
        total: The seconds of the whole table.
    """

    study: Path
    ways: Sequence[Way]
    device: str
    began: float
    total: float

    def __post_init__(self) -> None:
        self.rows = {way: Row(way.name, way.packs) for way in self.ways}
        self.first: dict[str, float] | None = None

    def left(self) -> float:
        return self.began + self.total - time.monotonic()

    def run(self, way: Way, number: int) -> float | None:
        """Run the study and return the seconds, or None with the reason in its row. `number` is 0 for a cold run."""
        row, reference = self.rows[way], self.rows[self.ways[0]]
        usual = reference.cold if number == 0 or not reference.warm else max(reference.warm)
        limit = FIRST * self.total if usual is None else LATE * usual + SLACK
        kept = way if way.cold else self.ways[0]
        cache = self.study.parent / f"cache-{kept.name}-{kept.packs}".replace(" ", "")
        deadline = time.monotonic() + min(limit, self.left())
        try:
            seconds, values = run_study(way, self.study, number, cache, self.device, deadline)
        except (ChildFailed, MemoryError, MpsFailed, OSError) as error:
            row.failed = str(error) if isinstance(error, MpsFailed) else why(error)
            print(f"{way.name}, {way.packs} at once: {row.failed}", file=sys.stderr, flush=True)
            return None
        if self.first is None:
            self.first = values
        row.same = row.same is not False and values == self.first
        print(f"{way.name}, {way.packs} at once, run {number}: {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds

    def cold(self) -> None:
        """Run each way that is run with an empty cache."""
        for way in self.ways:
            if way.cold and (self.first is not None or way is self.ways[0]):
                self.rows[way].cold = self.run(way, 0)

    def warm(self, rounds: int) -> None:
        """Run all ways in turns as long as time is left."""
        reference = self.rows[self.ways[0]]
        ratios: dict[Way, list[float]] = {way: [] for way in self.ways}
        for number in range(1, rounds + 1):
            for way in self.ways:
                row = self.rows[way]
                usual = reference.warm[-1] if reference.warm else 0.0
                if row.failed or reference.failed or self.left() < usual:
                    continue
                if (seconds := self.run(way, number)) is not None:
                    row.warm.append(seconds)
                    if len(reference.warm) == number:
                        ratios[way].append(seconds / reference.warm[-1])
        for way, row in self.rows.items():
            row.ratio = statistics.median(ratios[way]) if ratios[way] else None
            if not row.warm and not row.failed:
                row.failed = "the first row failed" if reference.failed else "no time was left"


def measure_steps(
    study: Path, packs: int, device: str, rounds: int, deadline: float, ways: Sequence[Together] = WAYS
) -> list[Row]:
    """Return the rows of steps; see `benchmarks.gpu_together`."""
    tuned = f"--xla_gpu_per_fusion_autotune_cache_dir={study.parent / 'tuned'}"
    cache = {"TAETPU_CACHE": str(study.parent / "cache-steps"), **without_mps(study.parent)}
    (study.parent / "tuned").mkdir(exist_ok=True)
    ready, windows, failed = measure_together(
        study, packs, lambda flags: environ(device, f"{tuned} {flags}") | cache, rounds, deadline, ways
    )
    rows = []
    for way in ways:
        row = Row(way.name, packs, failed=failed.get(way.name, ""))
        rows.append(row)
        if row.failed:
            continue
        row.cold = ready[way.name].ready
        row.warm = [window[way.name]["seconds"] for window in windows]
        both = [window for window in windows if IN_TURN.name in window]
        if both:
            row.ratio = statistics.median(each[way.name]["seconds"] / each[IN_TURN.name]["seconds"] for each in both)
            row.same = all(each[way.name]["digest"] == each[IN_TURN.name]["digest"] for each in both)
    return rows


def show(rows: Sequence[Row]) -> str:
    """Return the table, at most 80 columns wide."""
    lines = [f"{'':38}{'packs':>6}{'cold, s':>9}{'warm, s':>9}{'ratio':>7}{'same bits':>11}"]
    for row in rows:
        cold = "-" if row.cold is None else f"{row.cold:.1f}"
        start = f"{row.name:38}{row.packs:>6}{cold:>9}"
        if not row.warm:
            lines += [start.rstrip(), explain(row)]
            continue
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        same = {None: "-", True: "yes", False: "no"}[row.same]
        lines.append(f"{start}{statistics.median(row.warm):>9.2f}{ratio:>7}{same:>11}")
        if row.failed:
            lines.append(explain(row))
    return "\n".join(lines)


def explain(row: Row) -> str:
    """Return why a row has no figures, or none of later rounds."""
    return textwrap.fill(f"not measured: {row.failed}", 80, initial_indent="  ", subsequent_indent="    ")


def measure(study: Path, asked: argparse.Namespace, began: float) -> list[Row]:
    """Print the table as far as it was measured, and return its rows."""
    studies = Studies(study, ways(asked.at_once), asked.device, began, 60 * asked.minutes)
    steps = [Row(way.name, max(asked.at_once), failed="no time was left") for way in WAYS]
    try:
        studies.cold()
        share = min(STEPS_SHARE * studies.total, studies.left())
        steps = measure_steps(study, max(asked.at_once), asked.device, asked.rounds + 1, time.monotonic() + share)
        studies.warm(asked.rounds)
    finally:
        rows = [*studies.rows.values(), *steps]
        print(show(rows), flush=True)
    return rows


def end_at_sigterm() -> None:
    """Raise `SystemExit` at SIGTERM, so that all processes are ended first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main() -> int:
    """Print the table; return 1 if values differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", choices=(2, 3, 4), default=[2, 4], help="packs at once")
    parser.add_argument("--rounds", type=int, default=2, help="warm runs of each")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    asked = parser.parse_args()
    if asked.device == "cuda" and not any(Path("/dev").glob("nvidia[0-9]*")):
        print("no NVIDIA GPU is here: nothing was measured")
        return 0
    end_at_sigterm()
    began, text = time.monotonic(), STUDY
    for name, size in (SMALL if asked.small else SIZES).items():
        text = text.replace(name, str(size))
    with tempfile.TemporaryDirectory() as place:
        (study := Path(place) / "study.yaml").write_text(text)
        rows = measure(study, asked, began)
    return int(any(row.same is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
