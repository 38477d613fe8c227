"""Plans of packs. A pack is a group of runs that one program trains together.

A plan is made and stored before the first step, so that resumed runs are bitwise reproducible.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import jax

from taetpu.core.static_dynamic import split
from taetpu.data.base import Source
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.resolved_study import RunKey, RunSpec
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.beside import layouts_beside
from taetpu.train.choose_compute import choose_compute
from taetpu.train.layout import (
    AUTO,
    Layout,
    Packing,
    RunGroup,
    Workload,
    auto_precision,
    choose_layout,
    group_runs,
    structure_key,
    without_kernels,
)


@dataclass(frozen=True)
class Run(RunSpec):
    """A run with its folder in a study. It can be trained, stored and resumed."""

    folder: RunFolder = field(kw_only=True)

    @classmethod
    def at(cls, spec: RunSpec, study: StudyFolder) -> "Run":
        """Return a run with its folder in a study. The folder need not exist yet."""
        return cls(**{name.name: getattr(spec, name.name) for name in fields(RunSpec)}, folder=study.run(*spec.key))

    @property
    def done(self) -> bool:
        """Whether the run has a result."""
        return self.folder.status() == "done"


@dataclass(frozen=True)
class PackPlan:
    """The runs of a pack and how they are computed. A plan never changes after the first step of its pack.

    Attributes:
        id: the name of the pack's folder.
        runs: the keys of the runs. A pack with fewer than `layout.width` runs is padded with copies of its first run.
        layout: the width and the devices of the program.
        compute: the compute options of the model.
        precision: dtype of activations and matrix products. A study keeps this dtype when it moves to other devices.
        live: fields that are traced even in runs where their value is neutral (see `core.static_dynamic.split`).
        chosen: the origin of the layout: `rule of thumb`, `asked for`, or `measured` (earlier versions only).
        halved_from: the original width, if the pack ran out of memory and was split; otherwise None.
        platform: the platform that the pack was planned for: cpu, gpu or tpu; empty in plans of earlier versions.
        windows: the value of `train.compute.windows` with which the pack was planned.
    """

    id: str
    runs: tuple[RunKey, ...]
    layout: Layout
    compute: ComputeOptions
    precision: str
    live: tuple[str, ...] = ()
    chosen: str = "rule of thumb"
    halved_from: int | None = None
    platform: str = ""
    windows: str = "traced"

    @property
    def width(self) -> int:
        """The number of runs that the program trains at once."""
        return self.layout.width

    @property
    def data(self) -> dict[str, Any]:
        """The plan as plain data, as stored in `plan.json`."""
        flat = {name: value for name, value in vars(self).items() if name not in ("layout", "compute")}
        return {**flat, **asdict(self.layout), **self.compute.data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "PackPlan":
        """Return a plan from the data in a `plan.json` that any version of taetpu has written."""

        def part(kind: Any) -> dict[str, Any]:
            return {name: data[name] for name in kind.__dataclass_fields__ if name in data}

        fields = part(cls) | {"layout": Layout(**part(Layout)), "compute": ComputeOptions(**part(ComputeOptions))}
        runs = tuple((arm, seed, run_id) for arm, seed, run_id in data["runs"])
        return cls(**{**fields, "live": tuple(data["live"]), "runs": runs})

    @property
    def facts(self) -> dict[str, Any]:
        """The part of the plan that is recorded in the results of its runs."""
        layout, compute = asdict(self.layout), self.compute
        divided = {name: layout[name] for name in ("data", "model")} if self.layout.divided else {}
        halved = {} if self.halved_from is None else {"halved_from": self.halved_from}
        return {
            "id": self.id,
            "width": self.layout.width,
            "devices": self.layout.devices,
            "unroll": compute.unroll,
            "precision": self.precision,
            "chosen": self.chosen,
            **halved,
            **divided,
            **compute.non_default,
        }

    def program_key(self, config: ResolvedConfig) -> str:
        """Return a key that is equal for packs that share a program; `config` is the config of any run of the pack."""
        structure = structure_key(split(config, frozenset(self.live))[0])
        return f"{self.layout} {self.precision} {self.compute} {structure}"

    def work(self, runs: Sequence[RunSpec], source: Source) -> Workload:
        """Return the workload of the given runs of the pack; `source` is the runs' prepared task."""
        return Workload(RunGroup(frozenset(self.live), tuple(runs)), source, self.precision, self.compute)

    def respects(self, packing: Packing) -> bool:
        """Return whether `packing` allows a pack of this width."""
        return packing.widest is None or self.width <= packing.widest

    def halved(self, runs: Sequence[RunKey]) -> list["PackPlan"]:
        """Return plans of half the width for the given runs of a pack that ran out of memory."""
        layout = self.layout.halved()
        halves = [tuple(runs[start : start + layout.width]) for start in range(0, len(runs), layout.width)]
        before = self.halved_from or self.width
        return [replace(self, id=pack_id(half), runs=half, layout=layout, halved_from=before) for half in halves]


@dataclass(frozen=True)
class Pack:
    """A pack: its plan, and its runs in the order of the plan."""

    plan: PackPlan
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, plan: PackPlan, runs: Iterable[Run]) -> "Pack":
        """Return a planned pack. The window masks of its runs are computed as planned."""
        asked = [run if run.config.train.compute.windows == plan.windows else replace(run,
                 config=run.config.with_windows(plan.windows)) for run in runs]  # fmt: skip
        return cls(plan, tuple(asked))

    @property
    def id(self) -> str:
        """The name of the pack's folder."""
        return self.plan.id

    @property
    def config(self) -> ResolvedConfig:
        """The config of the first run. The configs of the other runs differ only in traced values."""
        return self.runs[0].config

    @property
    def program_key(self) -> str:
        """A key that is equal for packs that share a program."""
        return self.plan.program_key(self.config)

    @property
    def unfinished(self) -> list[Run]:
        """The runs that have no result yet."""
        return [run for run in self.runs if not run.done]


def plan_packs(
    runs: Sequence[RunSpec],
    sources: Iterable[Source],
    earlier: Sequence[PackPlan] = (),
    packing: Packing = AUTO,
    *,
    beside: bool = False,
) -> list[PackPlan]:
    """Return pack plans for runs that are not in a pack yet.

    Args:
        runs: the runs.
        sources: the prepared task of each run.
        earlier: the existing plans of the study. For `precision: auto`, the dtype of the first plan is used again.
        packing: the value of the option `--pack`.
        beside: whether packs may be planned for fewer devices than there are, so that several train at once.
    """
    source_of = dict(zip((run.id for run in runs), sources, strict=True))
    works = []
    for members in group_runs(runs):
        precision = members.runs[0].config.train.precision
        if precision == "auto":
            precision = earlier[0].precision if earlier else auto_precision()
        work = Workload(members, source_of[members.runs[0].id], precision)
        works.append(replace(work, execution=choose_compute(work.config, work.source, precision)))
    choose = layouts_beside(works, packing) if beside else partial(choose_layout, packing=packing)
    return [plan for work in works for plan in _plans(work, *choose(work))]


def _plans(work: Workload, layout: Layout, chosen: str) -> list[PackPlan]:
    """Return the plans of the packs of a group of runs."""
    compute = without_kernels(work.execution, work.config) if layout.divided else work.execution
    live, platform, windows = tuple(sorted(work.group.live)), jax.default_backend(), work.config.train.compute.windows
    members = [run.key for run in work.group.runs]
    packs = [tuple(members[start : start + layout.width]) for start in range(0, len(members), layout.width)]
    return [
        PackPlan(pack_id(keys), keys, layout, compute, work.precision, live, chosen, platform=platform, windows=windows)
        for keys in packs
    ]


def pack_id(runs: Sequence[RunKey]) -> str:
    """Return the ID of a pack, which is a hash of the keys of its runs."""
    return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]
