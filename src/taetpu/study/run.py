"""Running a study: freeze it, plan what is missing, train it pack by pack, analyse, report."""

import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import jax

from taetpu.core.config import load, split, to_data
from taetpu.core.errors import UserError
from taetpu.data.batches import Source
from taetpu.report.build import build
from taetpu.spec.design import RunSpec, Study, check_frozen, frozen
from taetpu.spec.schema import ResolvedConfig
from taetpu.stats.analyse import analyse
from taetpu.store.study import StudyFolder
from taetpu.train.loop import PackTrainer
from taetpu.train.pack import Program, structure_key
from taetpu.train.plan import PackPlan, plan_packs
from taetpu.train.watch import Watcher


@dataclass
class Outcome:
    """What a study came to: its results, where its report is, and the packs that raised an error."""

    results: dict[str, Any]
    report: dict[str, str]
    failed: list[tuple[PackPlan, Exception]] = field(default_factory=list)


def environment() -> dict[str, Any]:
    """What the runs are trained with; it goes with every result."""
    device = jax.devices()[0]
    names = ("taetpu", "jax", "jaxlib", "equinox", "optax", "numpy")
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "matmul_precision": str(jax.config.jax_default_matmul_precision or "default"),
        "versions": {name: version(name) for name in names},
    }


class Sources:
    """The prepared tasks of a study, each read once."""

    def __init__(self, folder: Path):
        self.folder, self.known = folder, {}

    def of(self, config: ResolvedConfig) -> Source:
        key = json.dumps(to_data(config.task), sort_keys=True)
        if key not in self.known:
            try:
                self.known[key] = config.task.prepare(self.folder)
            except UserError as error:
                raise error.at("base", "task") from None
        return self.known[key]


def run_study(study: Study, folder: StudyFolder, watcher: Watcher) -> Outcome:
    """Train what is missing, then analyse and report. Called again it goes on where it was stopped.

    Raises:
        UserError: another process holds the study's folder; the folder holds another study; the disk is full.
    """
    with folder.claim():
        runs, sources = freeze(study, folder)
        outcome = Outcome({}, {})
        train_missing(folder, runs, sources, watcher, outcome)
        outcome.results = analyse(folder)
        outcome.report = build(folder)
        return outcome
