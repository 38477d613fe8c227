"""Programs that misbehave, each a tiny script, with what becomes of them. `python -m tests.programs.misbehaving` runs
them and prints a table.
"""

import math
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.programs.metric_sources import parse_sources
from taetpu.programs.metrics import MetricReader
from taetpu.programs.output import Stream, read_output
from taetpu.programs.process import Ending, Limits, Process, start_process

PATTERN = {"stdout": r"step (?P<step>\d+): loss (?P<loss>\S+)"}
REPORT = "print('step 1: loss 2.5', flush=True)\n"
"""A line of code with which a program reports a loss."""
THREADS = 6
QUICK = Limits(seconds=120, grace=0.2, linger=0.2)


@dataclass(frozen=True)
class Program:
    """A script and what is expected of it.

    Attributes:
        code: the script, which runs in the run's folder.
        cause, code_or_signal: the expected end; a signal is negative.
        loss: the last loss; None if no loss is reported.
        error: the value or place that the error about metrics names; empty if there is none.
        last_line: the last line of output.
        stored: a part of the stored output.
        left: the number of processes that it leaves behind.
        metrics: where it reports metrics.
        stops: whether it is stopped when it has reported a loss.
    """

    code: str
    cause: str = "exit"
    code_or_signal: int | None = 0
    loss: float | None = 2.5
    error: str = ""
    last_line: str = "step 1: loss 2.5"
    stored: bytes = b""
    left: int = 0
    metrics: Mapping[str, object] = field(default_factory=lambda: PATTERN)
    limits: Limits = QUICK
    shell: bool = False
    stops: bool = False


FORK = "import os, time, signal\n"
SLEEP = "time.sleep(600)\n"
DAEMON = (
    f"{FORK}if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: {SLEEP}    os._exit(0)\nos.wait()\n{REPORT}"
)
JSONL = {"jsonl": "log.jsonl"}
BINARY = bytes(range(256))

PROGRAMS = {
    # --- ends ---
    "exits with a code": Program(REPORT + "raise SystemExit(7)", code_or_signal=7),
    "raises an exception": Program(REPORT + "1 / 0", code_or_signal=1, last_line="ZeroDivisionError: division by zero"),
    "is killed by SIGKILL": Program(REPORT + "import os; os.kill(os.getpid(), 9)", "signal", -9),
    "crashes with SIGSEGV": Program(REPORT + "import os; os.kill(os.getpid(), 11)", "signal", -11),
    "is killed within a shell": Program(
        "exec 2>/dev/null\necho 'step 1: loss 2.5'\nsh -c 'kill -9 $$'", code_or_signal=137, shell=True
    ),
    "hangs": Program(
        "import time; time.sleep(600)", "time", -15, loss=None, last_line="", limits=Limits(seconds=0.5, grace=20)
    ),
    "is stopped": Program(REPORT + "import time; time.sleep(600)", "stopped", -15, stops=True),
    "ignores SIGTERM": Program(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n" + REPORT + SLEEP, "stopped", -9, stops=True
    ),
    "exits with 0 on SIGTERM": Program(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(0))\n" + REPORT + SLEEP,
        "stopped", 0, stops=True, limits=Limits(grace=60),
    ),
    "stops itself": Program(  # its child reports the loss, once it has stopped
        "import os\nstate = f'/proc/{os.getpid()}/stat'\nif os.fork(): os.kill(os.getpid(), 19)\n"
        "while open(state).read().rpartition(')')[2].split()[0] != 'T': pass\n" + REPORT, "stopped", -9, stops=True,
    ),
    "uses too much memory": Program(
        REPORT + "x = bytearray(300 * 2**20)\nimport time; time.sleep(600)", "memory", -9,
        limits=Limits(seconds=120, memory=150 * 2**20),
    ),
    "cannot allocate memory": Program(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))\n" + REPORT + "x = bytearray(2**30)",
        code_or_signal=1, last_line="MemoryError",
    ),
    # --- processes ---
    "forks and leaves": Program(f"{FORK}if os.fork() == 0: {SLEEP}{REPORT}", left=1),
    "becomes a daemon": Program(DAEMON, left=1),
    "leaves a child that ignores SIGTERM": Program(
        f"{FORK}if os.fork() == 0:\n    signal.signal(15, signal.SIG_IGN)\n    {SLEEP}time.sleep(0.2)\n{REPORT}", left=1
    ),
    "leaves a child that holds the pipe": Program(
        f"{REPORT}import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)", left=1
    ),
    "leaves a child that ends soon": Program(
        f"{FORK}if os.fork() == 0:\n    time.sleep(0.3)\n    os.write(1, b'step 2: loss 1.5\\n')\n"
        f"    os._exit(0)\n{REPORT}",
        loss=1.5, last_line="step 2: loss 1.5", limits=Limits(seconds=120, linger=10),
    ),
    "is stopped with a child in another session": Program(
        f"{FORK}signal.signal(15, signal.SIG_IGN)\nreading, writing = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
        f"    os.read(reading, 1)\n    {REPORT}    {SLEEP}"
        f"signal.signal(15, signal.SIG_DFL)\nos.write(writing, b'x')\n{SLEEP}",
        "stopped", -15, stops=True,
    ),
    # --- output ---
    "prints much": Program(
        "import os\nfor _ in range(20): os.write(1, (b'x' * 99 + b'\\n') * 10_000)\n" + REPORT,
        stored=b"bytes of output left out here", limits=Limits(seconds=120, output=2**20),
    ),
    "prints bytes that are no text": Program(
        "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\n')\n" + REPORT, stored=BINARY
    ),
    "prints zero bytes": Program("import sys; sys.stdout.buffer.write(bytes(3 * 2**20) + b'\\n')\n" + REPORT),
    "prints a very long line": Program("print('x' * 5_000_000)\n" + REPORT),
    "ends without a newline": Program("print('step 1: loss 2.5', end='')"),
    "prints progress bars": Program(
        "import sys\nfor i in range(9): print(f'\\r{i}/9 step {i}: loss {i}.5', end='')\nprint('\\rstep 1: loss 2.5')"
    ),
    "prints colours": Program("print('\\x1b[32mstep 1: \\x1b[1mloss 2.5\\x1b[0m')"),
    "mixes its streams": Program(
        "import os\nfor part in (b'step 1:', b' loss', b' 2.5\\n'): os.write(1, part); os.write(2, b'\\r 50%|###  |')"
    , last_line=" 50%|###  |"),
    "closes its output": Program(
        REPORT + "import os, time; os.close(1); os.close(2); time.sleep(0.3)"
    ),
    "reads its input": Program("input()", code_or_signal=1, loss=None,
                               last_line="EOFError: EOF when reading a line"),
    # --- metrics ---
    "reports no metric": Program("print('done')", loss=None, error="loss", last_line="done"),
    "reports another metric": Program(
        "open('log.jsonl', 'w').write('{\"step\": 1, \"losses\": 2.5}\\n')", loss=None, error="losses", last_line="",
        metrics=JSONL,
    ),
    "reports NaN": Program("print('step 1: loss nan')", loss=math.nan, last_line="step 1: loss nan"),
    "reports infinity": Program("print('step 1: loss -inf')", loss=-math.inf, last_line="step 1: loss -inf"),
    "reports text": Program(
        "print('step 1: loss 3.0')\nprint('step 2: loss 45%', flush=True)\nimport time; time.sleep(600)",
        "stopped", -15, loss=3.0, error="stdout:2", last_line="step 2: loss 45%",
    ),
    "reports steps out of order": Program("for i in (1, 9, 5, 7): print(f'step {i}: loss {i}.5')", loss=7.5,
                                          last_line="step 7: loss 7.5"),
    "reports a step twice": Program("for i in (3, 2): print(f'step 1: loss {i}.5')"),
    "reports a step that is no integer": Program(
        "open('log.jsonl', 'w').write('{\"step\": 1.5, \"loss\": 2.5}\\n')\nimport time; time.sleep(600)",
        "stopped", -15, loss=None, error="log.jsonl:1", last_line="", metrics=JSONL,
    ),
    "reports a step below 0": Program(
        "open('log.jsonl', 'w').write('{\"step\": -1, \"loss\": 2.5}\\n')\nimport time; time.sleep(600)",
        "stopped", -15, loss=None, error="log.jsonl:1", last_line="", metrics=JSONL,
    ),
    "reports numbers as texts": Program(
        "open('log.jsonl', 'w').write('{\"step\": \"1\", \"loss\": \"2.5\"}\\n')", last_line="", metrics=JSONL,
    ),
    "writes half a line": Program(
        "open('log.jsonl', 'w').write('{\"loss\": 2.5}\\n{\"loss\": 1')",
        error="log.jsonl:2", last_line="", metrics=JSONL,
    ),
    "dies within a line": Program(
        "open('log.jsonl', 'w').write('{\"loss\": 2.5}\\n{\"loss\": 1')\nimport os; os.kill(os.getpid(), 9)",
        "signal", -9, last_line="", metrics=JSONL,
    ),
    "writes no file": Program(REPORT, loss=None, error="log.jsonl", metrics=JSONL),
    "writes a pipe for a file": Program(
        "import os; os.mkfifo('log.jsonl')", loss=None, error="log.jsonl", last_line="", metrics=JSONL
    ),
    "rotates its file": Program(
        "import json, os, time\n"
        "def write(step, loss): print(json.dumps({'step': step, 'loss': loss}), file=open('log.jsonl', 'a'))\n"
        "write(1, 4.5)\ntime.sleep(1.2)\nwrite(2, 3.5)\nos.rename('log.jsonl', 'log.1')\nwrite(3, 2.5)",
        last_line="", metrics=JSONL,
    ),
    "ends with text after its JSON": Program(
        "print('{\"loss\": 2.5}\\nbye')", loss=None, error="bye", last_line="bye", metrics={"json": "stdout"}
    ),
    # --- files ---
    "deletes its folder": Program("import os, shutil; shutil.rmtree(os.getcwd())\n" + REPORT),
    "writes outside its folder": Program("open('../outside', 'w').write('x')\n" + REPORT),
    "changes its own source": Program("open('program', 'w').write('1 / 0')\n" + REPORT),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a program."""

    ending: Ending
    reader: MetricReader
    error: UserError | None
    output: bytes
    seconds: float


class Stopper:
    """Stops a process that has reported a loss."""

    def __init__(self, process: Process, reader: MetricReader):
        self.process, self.reader = process, reader

    def write(self, stream: Stream, data: bytes) -> None:
        if self.reader.last:
            self.process.stop()

    def poll(self) -> None:
        pass


def run_program(program: Program, folder: Path) -> Outcome:
    """Run a program in a new folder, as a study does."""
    inside = folder / "run"
    inside.mkdir()
    (inside / "program").write_text(program.code)
    start = ["sh"] if program.shell else [sys.executable, "-I", "-S"]
    reader, error = MetricReader(parse_sources(program.metrics), inside, ["loss"]), None
    output, started = folder / "output.log.gz", time.monotonic()
    process = start_process([*start, "program"], cwd=inside, output=output, limits=program.limits)
    try:
        with process:
            ending = process.wait(reader, *([Stopper(process, reader)] if program.stops else []))
    except UserError as problem:
        error = problem
        ending = process.wait()
    try:
        reader.finish(ending.succeeded and error is None)
    except UserError as problem:
        error = problem
    return Outcome(ending, reader, error, read_output(output), time.monotonic() - started)


def describe(name: str, outcome: Outcome) -> str:
    """Return a row of the table."""
    losses = f"{outcome.reader.last['loss']:g}" if "loss" in outcome.reader.last else "-"
    error = outcome.error.problem if outcome.error else "-"
    return f"| {name} | {outcome.ending.describe()} | {losses} | {len(outcome.ending.left) or '-'} | {error} |"


def run_programs(programs: Mapping[str, Program], folder: Path) -> dict[str, Future[Outcome]]:
    """Start programs, several at a time, and return their outcomes by name."""
    pool = ThreadPoolExecutor(THREADS)
    outcomes = {}
    for number, (name, program) in enumerate(programs.items()):
        place = folder / str(number)
        place.mkdir()
        outcomes[name] = pool.submit(run_program, program, place)
    pool.shutdown(wait=False)
    return outcomes


def main() -> None:
    """Print the table."""
    print("| a program that | ending | loss | left processes stopped | error |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, outcome in run_programs(PROGRAMS, Path(folder)).items():
            print(describe(name, outcome.result()), flush=True)


if __name__ == "__main__":
    main()
