"""Damage a partly trained study, run it again, and compare the result with an undamaged study.

`python -m tests.faults --quick` injects 50 faults with a fixed seed: bit flips, truncations, emptied and missing files
and folders, at random places of checkpoints, metrics, results, records, plans and data. After each fault, the study is
reported and run again. No undamaged run may be lost or changed, and no damaged file may be used silently. Either the
final numbers are those of the undamaged study and the damage is named, or the command fails (exit 2) and names the file
and a remedy that works. `--all` injects 1,000 faults.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from taetpu.core.errors import UserError
from taetpu.report.build import build_report
from taetpu.report.inputs import read_inputs
from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import Study
from taetpu.stats.analyse import analyse, compute_results
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study import run
from taetpu.train import program as program_module
from taetpu.train.callbacks import Callback
from taetpu.train.layout import parse_packing

STUDY = """\
study: small
base:
  task: {kind: text, source: data.txt, seq_len: 8, val: 0.2}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 16, batch_size: 4, eval_every: 8, log_every: 4, checkpoint: 4, keep_checkpoints: true, sample: {tokens: 4}}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-4}
"""  # noqa: E501
TEXT = "the cat sat on the mat and ate the rat while the dog lay by the log " * 12
PACKING = parse_packing("2")
LAST, BEFORE = 12, 8  # checkpoints of the pack in which the study was stopped


class Stop(Callback):
    """Stops the second pack after its last but one checkpoint."""

    def __init__(self) -> None:
        self.number = 0

    def on_pack_begin(self, number: int, total: int, runs: Any) -> None:
        self.number = number

    def on_save(self, step: int) -> None:
        if self.number == 2 and step == LAST:
            raise KeyboardInterrupt


class DamageLog(Callback):
    """Collects the damaged files that a run reports."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_damage(self, where: str, problem: str, moved: str) -> None:
        self.lines.append(where)


@dataclass(frozen=True)
class Fault:
    """A fault of one kind at a file or folder, relative to the folder with the data and the root."""

    kind: str
    place: Path

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    @property
    def of(self) -> str:
        """The group of files that the fault damages."""
        parts = self.place.parts[2:]
        if self.place.name == "data.txt":
            return "data"
        if parts[:1] == ("packs",):
            return "checkpoints" if len(parts) > 2 and parts[2].isdecimal() else "packs"
        if parts[:1] == ("runs",):
            return {4: "results and records"}.get(len(parts), parts[3] if len(parts) > 4 else "runs")
        return "the study's own files"


def flip(path: Path, at: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[at.randrange(len(data))] ^= 1 << at.randrange(8)
    path.write_bytes(data)


def cut(path: Path, at: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: at.randrange(path.stat().st_size)])


def empty(path: Path, at: random.Random) -> None:
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        file.write_bytes(b"") if path.is_file() else file.unlink()


def remove(path: Path, at: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


KINDS: dict[str, Callable[[Path, random.Random], None]] = {"flip": flip, "cut": cut, "empty": empty, "remove": remove}


class Bench:
    """A reference study and a partly trained study. A context manager, because it replaces functions."""

    def __init__(self, folder: Path):
        self.folder = folder
        with ExitStack() as replaced:
            self.prepare(replaced)
            self.replaced = replaced.pop_all()

    def prepare(self, replaced: ExitStack) -> None:
        """Train the reference and the partly trained study; `replaced` restores functions."""
        folder = self.folder
        source = folder / "source"
        source.mkdir()
        (source / "study.yaml").write_text(STUDY)
        (source / "data.txt").write_text(TEXT)
        self.study = load_study(source / "study.yaml")
        for place, name, function in shared_programs(self.study):
            replaced.enter_context(mock.patch.object(place, name, function))
        whole = self.open(source / "whole")
        self.train(whole, Callback())
        self.whole = files(whole)
        part = self.open(source / "part")
        with suppress(KeyboardInterrupt):
            self.train(part, Stop())
        self.values = values(analyse(part))
        build_report(part)
        self.part = files(part)
        shutil.rmtree(source / "whole")
        self.source = source

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        self.replaced.close()

    def open(self, root: Path) -> StudyFolder:
        return StudyFolder(open_store(root), self.study.name)

    def train(self, folder: StudyFolder, callback: Callback, study: Study | None = None, retrain: bool = False) -> None:
        options = run.Options(packing=PACKING, retrain_damaged=retrain)
        outcome = run.run_study(study or self.study, folder, callback, options)
        assert not outcome.failed, outcome.failed[0].error

    def places(self) -> list[Path]:
        """Return every file and folder that a fault may damage, except claims and reports, which are never read."""
        own = sorted(path.relative_to(self.source) for path in (self.source / "part/small").rglob("*"))
        return [
            Path("data.txt"),
            *(path for path in own if path.name != "lock" and not {"report", "claims"} & {*path.parts}),
        ]

    def fault(self, at: random.Random) -> Fault:
        """Return a random fault. A group of files is drawn first, because checkpoints have most files."""
        groups: dict[str, list[Path]] = {}
        for place in self.places():
            groups.setdefault(Fault("", place).of, []).append(place)
        place = at.choice(groups[at.choice(sorted(groups))])
        known = self.source / place
        kinds = list(KINDS) if known.is_file() and known.stat().st_size else ["empty", "remove"]
        return Fault(at.choice(kinds if known.is_dir() or known.stat().st_size else ["remove"]), place)

    def strike(self, fault: Fault, at: random.Random) -> str:
        """Inject a fault into a copy, run the study, and return the outcome.

        Raises:
            AssertionError: if the study does not behave as this module's docstring says.
        """
        here = self.folder / "struck"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.source, here)
        folder, study = self.open(here / "part"), self.study
        KINDS[fault.kind](here / fault.place, at)
        before = files(folder)
        self.check_report(folder, here / fault.place)
        reported = DamageLog()
        try:
            if fault.of == "data":
                study = load_study(here / "study.yaml")
            self.train(folder, reported, study)
        except UserError as error:
            self.check_refusal(error, here / fault.place)
            self.check_untouched(folder, before, fault)
            self.remedy(error, folder, fault, here / fault.place)
            return "refused"
        finally:
            self.check_untouched(folder, before, fault)
        self.check_whole(folder)
        if reported.lines:
            assert any(overlap(Path(line), here / fault.place) for line in reported.lines), f"named {reported.lines}"
            return "repaired"
        assert not needed(fault), "not a word was said"
        return "not used"

    def check_report(self, folder: StudyFolder, struck: Path) -> None:
        """Check that a report has the numbers of the runs, or names the damaged file."""
        try:
            found = values(compute_results(folder))
        except UserError as error:
            self.check_refusal(error, struck)
            return
        wrong = {run for run, value in found.items() if value is not None and value != self.values[run]}
        assert not wrong, f"reported {wrong}"

    def check_refusal(self, error: UserError, struck: Path) -> None:
        assert error.remedy, f"no remedy: {error}"
        words = str(error).replace(":", " ").split()
        named = [Path(word) for word in words if word.startswith(str(self.folder))]
        assert any(overlap(path, struck) for path in named) or struck.name == "data.txt", f"not named: {error}"

    def check_untouched(self, folder: StudyFolder, before: dict[str, bytes], fault: Fault) -> None:
        """Check that finished, undamaged runs are bitwise unchanged."""
        after = files(folder)
        for run_folder in {name.rpartition("/")[0] for name in self.part if name.endswith("/result.json")}:
            if not overlap(Path("part/small", run_folder), fault.place):
                for name in (name for name in before if name.startswith(f"{run_folder}/")):
                    assert after.get(name) == before[name], f"{name} was changed"

    def check_whole(self, folder: StudyFolder) -> None:
        after = files(folder)
        for name in (name for name in self.whole if name.startswith("runs/") or name == "results.json"):
            same = after.get(name) == self.whole[name] or (
                name == "results.json" and replanned(after[name], self.whole[name])
            )
            assert same, f"{name} is not that of the undamaged study"

    def remedy(self, error: UserError, folder: StudyFolder, fault: Fault, struck: Path) -> None:
        """Follow the remedy, and check that the study then has the numbers of the undamaged study."""
        assert error.remedy
        if "--retrain-damaged" in error.remedy:
            reported = DamageLog()
            self.train(folder, reported, retrain=True)
            assert reported.lines, "retrained without a word"
        else:
            if "delete it" in error.remedy:
                struck.unlink()
            else:
                shutil.copy2(self.source / fault.place, struck)
            self.train(folder, DamageLog())
        self.check_whole(folder)


def shared_programs(study: Study) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield `(object, attribute, replacement)` so that programs and the contract are computed once, without charts."""
    made: dict[str, Any] = {}
    build_program, prove = program_module.Program, run.check_study

    def program(structure: Any, source: Any, layout: Any, **settings: Any) -> Any:
        key = f"{structure} {layout} {settings}"
        if key not in made:
            made[key] = build_program(structure, source, layout, **settings)
        return made[key]

    proof = prove(study)
    yield program_module, "Program", program
    yield run, "check_study", lambda one, **given: proof if one is study else prove(one, **given)
    yield run, "build_report", read_for_report


def read_for_report(folder: StudyFolder) -> dict[str, str]:
    """Read everything that a report is made of."""
    found = folder.read_results()
    assert found
    read_inputs(folder, found)
    return {}


def files(folder: StudyFolder) -> dict[str, bytes]:
    """Return the contents of a study's files by name, except wall times and files that were set aside."""
    root = Path(folder.where)
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    hidden = {"times", "times.json", "damaged", "report", "lock", "claims"}
    return {name: path.read_bytes() for name, path in found.items() if not hidden & set(name.split("/"))}


def values(found: dict[str, Any]) -> dict[tuple[str, int], float | None]:
    return {(arm["name"], one["seed"]): one["value"] for arm in found["arms"] for one in arm["runs"]}


def replanned(found: bytes, whole: bytes) -> bool:
    """Return whether results differ only in the note that the plan was written again after runs."""
    now, before = json.loads(found), json.loads(whole)
    said = now.pop("departures") and now["plan"].pop("written_after", 0)
    return bool(said) and now == {name: value for name, value in before.items() if name != "departures"}


def overlap(one: Path, other: Path) -> bool:
    """Return whether one path equals or contains the other."""
    one, other = Path(os.path.realpath(one)), Path(os.path.realpath(other))
    return one == other or one in other.parents or other in one.parents


def needed(fault: Fault) -> bool:
    """Return whether the study reads the damaged file. It cannot notice that some folders are missing."""
    parts = fault.place.parts[2:]
    if fault.place.name in ("results.json", "times.json") or "times" in parts:
        return False
    if parts[:1] == ("packs",):
        newest = len(parts) > 2 and parts[2] == str(LAST)
        lost = len(parts) == 3 or (fault.kind == "remove" and parts[3] == "complete")  # as if it was never complete
        return newest and not (lost and fault.kind in ("remove", "empty"))
    if parts[:1] == ("runs",):
        never_trained = fault.kind in ("remove", "empty") and len(parts) <= 3
        trained_again = fault.kind == "remove" and parts[-1] in ("result.json", "config.json")
        return not (never_trained or trained_again)
    return fault.kind != "remove" and len(parts) > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 faults")
    parser.add_argument("--all", action="store_true", help="1,000 faults")
    parser.add_argument("--faults", type=int, help="another number of faults")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    number = given.faults or (1000 if given.all else 50)
    began, at = time.monotonic(), random.Random(given.seed)
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    came, broken = Counter[tuple[str, str]](), []
    with tempfile.TemporaryDirectory(dir=place) as folder, Bench(Path(folder).resolve()) as bench:
        ready = time.monotonic() - began
        for _ in range(number):
            fault = bench.fault(at)
            try:
                came[fault.of, bench.strike(fault, at)] += 1
            except Exception as error:
                came[fault.of, "BROKEN"] += 1
                broken.append(f"{fault}: {type(error).__name__}: {error}".replace(folder, ""))
    outcomes = ("repaired", "refused", "not used", "BROKEN")
    print(f"{'struck':24}" + "".join(f"{outcome:>10}" for outcome in outcomes))
    for of in sorted({of for of, _ in came}):
        print(f"{of:24}" + "".join(f"{came[of, outcome]:>10}" for outcome in outcomes))
    took = f"{time.monotonic() - began:.0f} s, {ready:.0f} of them before the first"
    print(f"{number} faults, {len(broken)} promises broken; {took}")
    for line in broken:
        print(f"  {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
