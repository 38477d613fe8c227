"""How long each command takes at tiny size, with an empty compile cache and with that of the call before.

`python -m benchmarks.commands` trains a tiny model of text and calls the commands on it. Nearly all of their time is
the start, tracing and compiling. CPU seconds tell how much work is done, also beside other programs; wall seconds only
with nothing beside. Exits with 1 if a warm command takes more CPU seconds than its budget times `--factor`.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STUDY = """\
study: tiny
base:
  task: {kind: text, source: story.txt, tokenizer: {kind: char}, seq_len: 32}
  model: {dim: 32, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 8, batch_size: 4}
seeds: 2
arms: {relu: {model.ffn: relu}}
"""
TEXT = "the cat sat on the mat and the dog sat on the log. "
BUDGETS = {
    "--help": 0.2,
    "catalog": 1.3,
    "plan study.yaml": 2.3,
    "status tiny": 1.2,
    "report tiny --verify": 1.5,
    "lens perplexity latest story.txt": 1.6,
    "lens attention latest --text 'the cat sat'": 1.8,
    "lens scores latest": 1.7,
    "lens logit-lens latest --text 'the cat sat'": 1.6,
    "lens attribution latest --text 'the cat sat'": 1.9,
    "lens norms latest --text 'the cat sat'": 1.5,
    "lens knockout latest story.txt": 3.7,
    "lens sample latest --prompt 'the cat'": 1.8,
}
"""CPU seconds of a call with a warm cache, a quarter above what was measured on the machine of docs/log.md."""


@dataclass(frozen=True)
class Times:
    """Wall and CPU seconds of a call."""

    wall: float
    cpu: float


def call(words: str, folder: Path) -> Times:
    """Run a command, which must succeed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = f"{sys.executable} -m taetpu {words}"
    done = subprocess.run(
        ["sh", "-c", command], check=False, cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Times(time.monotonic() - began, cpu)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a call: programs and studies are stored in the folder."""
    return {**os.environ, "TAETPU_CACHE": str(folder / "cache"), "TAETPU_ROOT": str(folder / "runs")}


def measure(commands: list[str], folder: Path, rounds: int) -> Iterator[tuple[str, Times, Times]]:
    """Yield each command with the first and the fastest of the next calls."""
    (folder / "story.txt").write_text(TEXT * 200)
    (folder / "study.yaml").write_text(STUDY)
    call("run study.yaml", folder)
    for words in commands:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        cold = call(words, folder)
        warm = min((call(words, folder) for _ in range(rounds)), key=lambda times: times.cpu)
        yield words, cold, warm


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="warm calls of each command")
    parser.add_argument("--only", metavar="TEXT", default="", help="commands that contain this text")
    parser.add_argument("--factor", type=float, default=1.0, help="by which the machine is slower")
    asked = parser.parse_args()
    print("| command | cold, s (CPU) | warm, s (CPU) | budget |\n|---|--:|--:|--:|")
    slow = 0
    with tempfile.TemporaryDirectory() as place:
        chosen = [words for words in BUDGETS if asked.only in words]
        for words, cold, warm in measure(chosen, Path(place), asked.rounds):
            budget = BUDGETS[words] * asked.factor
            slow += warm.cpu > budget
            row = f"{cold.wall:.1f} ({cold.cpu:.1f}) | {warm.wall:.1f} ({warm.cpu:.1f}) | {budget:.1f}"
            print(f"| {words} | {row} |", flush=True)
    print(f"{slow} above the budget")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
