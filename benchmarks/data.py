"""Corpora larger than memory: memory, speed and exactness of studies on 4 GB of tokens and on 2 million documents.

The corpora are written to a folder, which is deleted at the end. Studies are trained by the command `taetpu`, whose
anonymous memory is sampled with that of its children. Memory that maps files is not counted: the system takes it back.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.large_corpora import WAYS, write_documents, write_tokenizer, write_tokens
from benchmarks.shapes import SHAPES, baseline
from taetpu.core.jax_setup import prepare_jax
from taetpu.store.documents import to_yaml

MEMORY = 1e9  # bytes of anonymous memory, the most that is allowed
FEED, PREPARING = 0.97, 0.8  # the least that is allowed
FEEDS = ("resident", "host")
RESIDENT = 2**24  # tokens of the corpus of the feed `resident`
SHAPE = SHAPES[64]
TURNS = (*WAYS, WAYS[0])  # of the library
PARTS = ("tokens", "feed", "documents")


def anonymous(process: int) -> int:
    """Return the bytes of anonymous memory of a process and its descendants."""
    total, waiting = 0, [process]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        try:
            lines = (place / "status").read_text().splitlines()
            waiting += [int(child) for file in place.glob("task/*/children") for child in file.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    return total


class Command:
    """A command of taetpu in a process, whose memory is sampled every 100 ms.

    Attributes:
        peak: the largest sum of anonymous memory, in bytes.
        seconds: the time until it ended.
    """

    def __init__(self, folder: Path, *arguments: str):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        self.output, self.peak, self.began = tempfile.TemporaryFile("w+"), 0, time.perf_counter()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taetpu", *arguments], cwd=folder, stdout=self.output, stderr=self.output,
            env={**variables, "TAETPU_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        self.sampler = threading.Thread(target=self.sample)
        self.sampler.start()

    def sample(self) -> None:
        """Sample the memory until the process has ended."""
        while self.process.poll() is None:
            self.peak = max(self.peak, anonymous(self.process.pid))
            time.sleep(0.1)
        self.seconds = time.perf_counter() - self.began

    def end(self, *codes: int) -> "Command":
        """Wait for the end of the process.

        Raises:
            RuntimeError: it ended with another code.
        """
        self.sampler.join()
        with self.output:
            self.output.seek(0)
            if self.process.returncode not in (codes or (0,)):
                problem = f"{self.process.args} ended with code {self.process.returncode}"
                raise RuntimeError(f"{problem}:\n{self.output.read()[-2000:]}")
        return self


def base_of(task: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the baseline of a study with the given task."""
    base = baseline(SHAPE, Path(), steps)
    base["task"] = {"seq_len": SHAPE.seq, **task}
    base["train"] |= {"checkpoint": max(steps // 8, 1), "compute": {"feed": "host"}}
    return base


def write_study(folder: Path, name: str, task: Mapping[str, Any], steps: int) -> None:
    """Write a study with two arms, which are trained as one pack."""
    data = {"study": name, "base": base_of(task, steps), "seeds": 1, "arms": {"low-lr": {"train.optimizer.lr": 3e-4}}}
    (folder / f"{name}.yaml").write_bytes(to_yaml(data))


def results(folder: Path, root: str, study: str) -> dict[str, bytes]:
    """Return the results of a study and the weights of its models."""
    place = folder / root / study
    files = [place / "results.json", *place.glob("runs/*/*/model/*.safetensors")]
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def train_tokens(folder: Path, steps: int) -> dict[str, Any]:
    """Train on the tokens, once undisturbed and once killed in mid-epoch and resumed."""
    write_study(folder, "tokens", {"kind": "tokens", "source": "corpus", "vocab_size": 256}, steps)
    whole = Command(folder, "run", "tokens.yaml", "--root", "whole").end()
    cut = Command(folder, "run", "tokens.yaml", "--root", "cut")
    while not any((folder / "cut").glob("tokens/packs/*/*/complete")):
        if cut.process.poll() is not None:
            cut.end(-signal.SIGKILL)
        time.sleep(0.01)
    cut.process.kill()
    cut.end(-signal.SIGKILL)
    resumed = Command(folder, "run", "tokens.yaml", "--root", "cut").end()
    equal = results(folder, "whole", "tokens") == results(folder, "cut", "tokens")
    files = len(results(folder, "whole", "tokens"))
    return {"peaks": [part.peak for part in (whole, cut, resumed)], "seconds": whole.seconds, "equal": equal,
            "files": files}  # fmt: skip


def train_documents(folder: Path, steps: int) -> dict[str, Any]:
    """Prepare and train on the documents, and time the library alone before and after."""
    size = sum(file.stat().st_size for file in (folder / "documents").iterdir())
    task = {"kind": "text", "source": "documents", "tokenizer": {"kind": "file", "path": "tokenizer.json"},
            "split": "hash", "val": 0.002}  # fmt: skip
    write_study(folder, "documents", task, steps)
    library, sizes = zip(*(time_library(folder, way) for way in TURNS), strict=True)
    prepared = Command(folder, "data", "prepare", "documents.yaml").end()
    trained = Command(folder, "run", "documents.yaml", "--root", "whole").end()
    rate = max(sizes) / prepared.seconds
    return {"peaks": [prepared.peak, trained.peak], "library": library, "rate": rate, "ratio": rate / max(library),
            "bytes": size, "seconds": prepared.seconds}  # fmt: skip


def time_library(folder: Path, way: str) -> tuple[float, int]:
    """Return the bytes per second of the tokenizers library alone in a fresh process, and the bytes of the texts."""
    variables = {**os.environ, "TOKENIZERS_PARALLELISM": "true" if way == "threads" else "false"}
    command = [sys.executable, "-m", "benchmarks.large_corpora", folder / "tokenizer.json", folder / "documents", way]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare_feeds(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the rates of the feed `host` from the file and of `resident` with a part of it, which take turns."""
    from benchmarks.contest import over_rounds, rate
    from benchmarks.ours import FOREVER, Training, usual
    from taetpu.core.config_parsing import load_config
    from taetpu.nn.compute_options import ComputeOptions
    from taetpu.spec.study_config import RunConfig

    pair = {}
    for feed in FEEDS:
        task = {"kind": "tokens", "source": str(folder / "corpus"), "vocab_size": 256}
        crop = {"train_tokens": RESIDENT} if feed == "resident" else {}
        config = load_config(RunConfig, base_of({**task, **crop}, FOREVER)).resolve()
        source = config.task.prepare(folder)
        pair[feed] = Training(config, source, usual(config, source, 1), ComputeOptions(feed=feed))
        pair[feed].window(seconds)  # dispatches get their size
    windows = []
    for i in range(rounds):
        turn = {}
        for feed in FEEDS if i % 2 else reversed(FEEDS):
            before, began = pair[feed].taken, time.perf_counter()
            pair[feed].window(seconds)
            turn[feed] = {"steps": pair[feed].taken - before, "seconds": time.perf_counter() - began}
        windows.append(turn)
    rates = {feed: over_rounds(windows, lambda turn, f=feed: rate(turn[f], "steps")) for feed in FEEDS}
    ratio = over_rounds(windows, lambda turn: rate(turn["host"], "steps") / rate(turn["resident"], "steps"))
    return {"windows": windows, "steps_per_second": rates, "ratio": ratio}


def met(condition: bool) -> str:
    """Return whether a limit is met."""
    return "met" if condition else "MISSED"


def show_peaks(what: str, peaks: list[int]) -> str:
    """Return a line with peaks of memory."""
    listed = ", ".join(f"{peak / 1e6:,.0f} MB" for peak in peaks)
    return f"{what}: anonymous memory {listed}; {MEMORY / 1e6:,.0f} MB is {met(max(peaks) < MEMORY)}"


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts that are asked for, and print a line or two for each."""
    measured: dict[str, Any] = {}
    if {"tokens", "feed"} & set(asked.parts):
        began = time.perf_counter()
        write_tokens(folder / "corpus", asked.tokens)
        size = (folder / "corpus" / "train.bin").stat().st_size
        print(f"{asked.tokens:,} tokens, {size:,} bytes, written in {time.perf_counter() - began:.0f} s", flush=True)
    if "tokens" in asked.parts:
        tokens = measured["tokens"] = train_tokens(folder, asked.steps)
        print(show_peaks("tokens: whole, killed, resumed", tokens["peaks"]))
        print(f"tokens: {tokens['files']} files after kill -9 and resume are equal: {met(tokens['equal'])}", flush=True)
    if "feed" in asked.parts:
        feed = measured["feed"] = compare_feeds(folder, asked.rounds, asked.seconds)
        rates = ", ".join(f"{name} {speed['median']:,.0f}" for name, speed in feed["steps_per_second"].items())
        ratio = feed["ratio"]
        shown = f"{ratio['median']:.3f} ({ratio['least']:.3f}-{ratio['most']:.3f})"
        print(f"feed: {rates} steps/s; {shown}, {FEED} is {met(ratio['median'] >= FEED)}", flush=True)
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    if "documents" in asked.parts:
        write_documents(folder / "documents", asked.documents)
        write_tokenizer(folder / "tokenizer.json")
        documents = measured["documents"] = train_documents(folder, asked.steps)
        print(f"documents: {asked.documents:,} in {documents['bytes']:,} bytes, {documents['seconds']:.0f} s")
        print(show_peaks("documents: prepare, run", documents["peaks"]))
        library = ", ".join(f"{way} {rate / 1e6:.2f}" for way, rate in zip(TURNS, documents["library"], strict=True))
        print(
            f"preparing: {documents['rate'] / 1e6:.2f} MB/s, library {library}; "
            f"{documents['ratio']:.3f}, {PREPARING} is {met(documents['ratio'] >= PREPARING)}", flush=True,
        )  # fmt: skip
    return measured


def main() -> None:
    """Write the corpora, measure, print, and delete them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where corpora are written: 10 GB; by default a temporary folder")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--tokens", type=int, default=2**31)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=4000, help="of each run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window of a feed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        os.environ["TAETPU_CACHE"] = str(Path(folder) / "cache")
        prepare_jax()  # before jax is imported
        from benchmarks.contest import machine, shown_machine

        print(shown_machine(), flush=True)
        measured = measure(Path(folder), asked)
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), "measured": measured}, indent=1))


if __name__ == "__main__":
    main()
