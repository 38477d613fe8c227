"""What `taetpu run` costs beside a bare loop of bash that runs the same commands one after another.

Each command waits and prints a metric, so the difference is what taetpu adds: start-up, a supervisor for each program,
stored output and metrics, and at the end the analysis and the report. Both take turns, and the first of a round
alternates. Use: `python -m benchmarks.program_overhead`.
"""

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGET = 0.05
ARMS = 2
SCRIPT = 'sleep "$1"; echo "loss $2.0$3"\n'
STUDY = """
study: waits
program:
  command: [bash, wait.sh, "{{seconds}}", "{{level}}", "{{seed}}"]
  metrics: {{stdout: 'loss (?P<loss>\\S+)'}}
base: {{seconds: {seconds:g}, level: 1}}
seeds: {seeds}
arms: {{other: {{level: 2}}}}
measure: {{primary: loss, better: min}}
"""


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_loop(folder: Path, runs: int, seconds: float) -> dict[str, float]:
    """Run the commands in a loop of bash."""
    words = [["bash", "wait.sh", f"{seconds:g}", str(1 + i % ARMS), str(i // ARMS)] for i in range(runs)]
    loop = "\n".join(shlex.join(command) for command in words)
    began = time.monotonic()
    printed = subprocess.run(["bash", "-c", loop], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert printed.count("loss") == runs
    return {"seconds": time.monotonic() - began}


def run_study(folder: Path, runs: int) -> dict[str, float]:
    """Run the commands as a study, and return how long its parts took."""
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--root", root]
        used, times, began = cpu_seconds(), list[float](), time.monotonic()
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        ) as driver:
            assert driver.stderr is not None
            for line in driver.stderr:
                if " on seed " in line:
                    times.append(time.monotonic() - began)
        took = time.monotonic() - began
        assert driver.returncode == 0
        assert len(times) == 2 * runs, "each run starts and ends"
    parts = {"start": times[0], "runs": times[-1] - times[0], "end": took - times[-1]}
    return {"seconds": took, "cpu": cpu_seconds() - used, **parts}


def measure(runs: int, seconds: float, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Return the times of both in each round."""
    measured = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "wait.sh").write_text(SCRIPT)
        (folder / "study.yaml").write_text(STUDY.format(seconds=seconds, seeds=runs // ARMS))
        for number in range(rounds):
            turns = {"loop": lambda: run_loop(folder, runs, seconds), "study": lambda: run_study(folder, runs)}
            order = [*turns][:: 1 if number % 2 else -1]
            measured.append({name: turns[name]() for name in order})
    return measured


def overhead(turn: dict[str, dict[str, float]]) -> float:
    """Return the share of the loop's time that a study takes beyond it."""
    return turn["study"]["seconds"] / turn["loop"]["seconds"] - 1


def format_table(measured: list[dict[str, dict[str, float]]]) -> str:
    """Return a table with a row for each round, and whether the target is met."""
    names = ["round", "loop, s", "study, s", "overhead", "start, s", "runs, s", "end, s", "CPU of the study, s"]
    lines = [f"| {' | '.join(names)} |", "|--:" * len(names) + "|"]
    for number, turn in enumerate(measured, 1):
        study = turn["study"]
        parts = " | ".join(f"{study[part]:.1f}" for part in ("start", "runs", "end", "cpu"))
        lines.append(
            f"| {number} | {turn['loop']['seconds']:.1f} | {study['seconds']:.1f} | {overhead(turn):.1%} | {parts} |"
        )
    median = statistics.median(map(overhead, measured))
    lines.append(f"median {median:.1%}; the target of {TARGET:.0%} is {'met' if median < TARGET else 'missed'}")
    return "\n".join(lines)


def main() -> None:
    """Print the machine and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each command")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    asked = parser.parse_args()
    from taetpu.train.step_time import cpu_model

    about: dict[str, Any] = {"cpu": cpu_model(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}")
    measured = measure(asked.runs, asked.seconds, asked.rounds)
    print(format_table(measured))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": about, "rounds": measured}, indent=1))


if __name__ == "__main__":
    main()
