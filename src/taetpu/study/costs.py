"""Costs of a stored study's arms on this machine: the memory of compiled train steps, and times.

Each arm is timed alone, in turns with its baseline: a round has a window of both, and every second round has the
reverse order, so that what slows the machine meets both alike. Within a round, other processes are observed
(`core.machine_load`).
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

from taetpu.core.distributed import multi_process
from taetpu.core.errors import UserError, suggest
from taetpu.core.identity import canonical_json
from taetpu.core.jax_setup import cpu_cores
from taetpu.core.machine_load import BUSY, LoadMeter
from taetpu.core.plugins import load_plugins
from taetpu.core.static_dynamic import split
from taetpu.data.base import Source
from taetpu.lens.generate import Sampling, token_chunks, use_cache
from taetpu.lens.opened import OpenedModel
from taetpu.lens.opening import open_run_folder
from taetpu.spec.resolved_study import RunSpec
from taetpu.stats.results import Arm, Results
from taetpu.store.stored_costs import Compiled, Machine, Protocol, Round, StoredCosts, Timing
from taetpu.store.study import StudyFolder
from taetpu.train.device_capabilities import first_device
from taetpu.train.layout import Layout, Packing, Workload, choose_layout
from taetpu.train.memory import out_of_memory, program_bytes
from taetpu.train.program import Program
from taetpu.train.step_time import StepTimer, cpu_model, step_program, step_timer, step_workload

ROUNDS, SECONDS = 7, 0.5
PROMPT, TOKENS = 16, 64
Window = Callable[[float], float]
"""Works for about the given number of seconds, and returns the seconds per step or token."""


@dataclass(frozen=True)
class TimedArm:
    """An arm whose costs are measured: that of its first run.

    Attributes:
        name: the arm's name.
        against: its baseline; None for a baseline.
        run: the run whose config is measured.
        opened: the model of this run.
        work: the workload of the run alone.
        layout: the devices of the run alone: one, unless the run is divided.
    """

    name: str
    against: str | None
    run: RunSpec
    opened: OpenedModel
    work: Workload
    layout: Layout

    @property
    def trains(self) -> bool:
        """Whether the arm has train steps."""
        return self.run.config.train.steps != 0

    @property
    def program(self) -> list[object]:
        """Plain data that is equal for arms that cost the same on this machine."""
        work = self.work
        return step_program(work.config, work.group.live, self.layout, work.precision, work.execution)


def open_arms(
    folder: StudyFolder,
    results: Results,
    names: Sequence[str] = (),
    plugins: Sequence[Path] = (),
    data_folder: Path = Path(),
) -> list[TimedArm]:
    """Return the arms of a study that have an ended run, with their data.

    Args:
        folder: the study's folder.
        results: the content of `results.json`.
        names: the arms; their baselines are added. By default, all arms.
        plugins: the plug-ins of the study.
        data_folder: the folder to which paths in tasks are relative.

    Raises:
        UserError: if an arm does not exist or no arm has an ended run, or a model or its data cannot be opened.
    """
    known = {arm["name"]: arm for arm in results["arms"]}
    for name in names:
        if name not in known:
            raise UserError(f"no arm is named {name!r}", path=("--arm",), remedy=suggest(name, known))
    if "judged" in results:
        problem = "the arms of a table have no programs, so their costs cannot be measured"
        raise UserError(problem, file=folder.where, remedy="Use a study that taetpu trained.")
    if "program" in folder.read_study():
        problem = "the runs of this study are a program, whose models taetpu cannot measure"
        raise UserError(problem, file=folder.where, remedy="Use a study that taetpu trained.")
    wanted = {*(names or known)} | {base for name in names if (base := known[name]["against"])}
    ended = [arm for arm in results["arms"] if arm["name"] in wanted and any(run["id"] for run in arm["runs"])]
    if not ended:
        problem = f"no run of study {folder.name!r} has ended, so there is no program whose costs could be measured"
        raise UserError(problem, file=folder.where, remedy="Train runs first with `taetpu run STUDY`.")
    if plugins:
        load_plugins(list(plugins))
    sources: dict[str, Source] = {}
    return [_open_arm(folder, arm, data_folder, sources) for arm in ended]


def _open_arm(folder: StudyFolder, arm: Arm, data_folder: Path, sources: dict[str, Source]) -> TimedArm:
    first = next(run for run in arm["runs"] if run["id"])
    opened = open_run_folder(folder.run(arm["name"], first["seed"], str(first["id"])), data_folder=data_folder)
    record, config = opened.record, opened.run_config
    if record["data"] not in sources:
        sources[record["data"]] = opened.data
    run = RunSpec(arm["name"], first["seed"], config, record["id"], record["data"])
    work = step_workload((run,), sources[record["data"]])
    layout, _ = choose_layout(work, Packing(1))
    return TimedArm(arm["name"], arm["against"], run, opened, work, layout if layout.divided else Layout(1))


# --- what was measured, as it is stored -------------------------------------------------------------------------------


def machine_facts() -> Machine:
    """Return what times on this machine depend on."""
    device = first_device()
    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "platform": device.platform,
    }


def machine_key(machine: Machine) -> str:
    """Return the key under which the costs of a machine are stored. Machines of one kind share a key."""
    digest = hashlib.sha256(canonical_json(dict(machine)).encode()).hexdigest()
    return f"{machine['platform']}-{digest[:12]}"


def _today() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class CostsFile:
    """The stored costs of this machine. Arms that are measured again replace their earlier costs."""

    folder: StudyFolder

    def __post_init__(self) -> None:
        machine = machine_facts()
        self.key = machine_key(machine)
        versions = {name: version(name) for name in ("taetpu", "jax", "jaxlib")}
        empty: StoredCosts = {"date": _today(), "versions": versions, "compiled": {}, "machine": machine}
        self.stored = {**empty, **self.folder.read_costs().get(self.key, {}), "date": _today(), "versions": versions}

    def add(self, **parts: Mapping[str, object]) -> None:
        """Add the costs of arms to parts of the file such as `timings`, and store it."""
        for part, arms in parts.items():
            self.stored[part] = {**self.stored.get(part, {}), **arms}
        self.folder.write_costs(self.key, self.stored)  # pyright: ignore[reportArgumentType]


def store_cycles(folder: StudyFolder, arms: Sequence[TimedArm], compiled: Mapping[str, object]) -> None:
    """Store what the compiler for a TPU says about arms.

    Args:
        folder: the study's folder.
        arms: the arms.
        compiled: the result of `tpu.preflight.preflight` for a slice, of one run of each arm.
    """
    runs, programs = {arm.name: arm.run.id for arm in arms}, compiled["programs"]
    assert isinstance(programs, list)
    entries: dict[str, Compiled] = {
        name: {
            "run": runs[name],
            "bytes": program["hbm"]["needed"] if "hbm" in program else None,
            "cycles": program.get("cycles"),
        }
        for program in programs
        for name in program["arms"]
    }
    tpu = str(compiled["tpu"])
    key = f"tpu-{tpu}".replace(":", "-")
    earlier = folder.read_costs().get(key)
    if earlier is not None:
        entries = {**earlier["compiled"], **entries}
    versions = {"libtpu": version("libtpu")}
    folder.write_costs(key, {"date": _today(), "versions": versions, "tpu": tpu, "compiled": entries})


# --- memory -----------------------------------------------------------------------------------------------------------


def measure_memory(
    folder: StudyFolder, arms: Sequence[TimedArm], progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Compile the train step, if any, of one run of each arm, and store the memory that it needs.

    Stored ones are kept.
    """
    file, known = CostsFile(folder), dict[str, Compiled]()
    left = [arm for arm in arms if arm.trains and file.stored["compiled"].get(arm.name, {}).get("run") != arm.run.id]
    for number, arm in enumerate(left):
        progress(number, len(left))
        same = next((known[other.name] for other in left[:number] if other.program == arm.program), None)
        size = step_memory(arm.work, arm.layout) if same is None else same["bytes"]
        known[arm.name] = {"run": arm.run.id, "bytes": size}
        file.add(compiled={arm.name: known[arm.name]})
    progress(len(left), len(left))


def step_memory(work: Workload, layout: Layout) -> int | None:
    """Return the bytes that the compiled train step needs on a device; None if it does not fit."""
    structure, numbers = split(work.config, work.group.live)
    steps = work.config.train.total_steps(work.source.num_windows)
    program = Program(structure, work.source, layout, steps=steps, precision=work.precision, execution=work.execution)
    advance = program.advance
    try:
        executable = advance.lower(*program.shapes(numbers).advance).compile()  # pyright: ignore[reportFunctionMemberAccess]
    except Exception as error:
        if out_of_memory(error):
            return None
        raise
    return program_bytes(executable)["needed"]


# --- times ------------------------------------------------------------------------------------------------------------


def take_turns(timers: Mapping[str, Window], rounds: int, seconds: float, load: LoadMeter) -> Iterator[Round]:
    """Time windows in turns, and yield each round. Every second round has the reverse order."""
    for number in range(rounds):
        order = list(timers) if number % 2 == 0 else list(reversed(list(timers)))
        load.restart()
        passed = {name: timers[name](seconds) for name in order}
        yield {"order": order, "seconds": passed, "others": load.others()}


class DecodeTimer:
    """Generates tokens after a prompt with a model, one sequence at a time; with a cache if every mixer offers one."""

    def __init__(self, opened: OpenedModel, prompt: int, tokens: int):
        opened.check_predicts_next(generates=True)
        self.opened, self.tokens = opened, tokens
        self.batch = opened.encode(np.arange(prompt)[None] % opened.vocab_size, multiple=1)
        opened.check_length(prompt + tokens - 1)
        self.cached = use_cache(opened, self.batch, None)
        self.generate()  # compiles

    def generate(self) -> None:
        """Generate all tokens once."""
        for _ in token_chunks(self.opened, self.batch, self.tokens, Sampling(temperature=0), 0, self.cached):
            pass

    def window(self, seconds: float) -> float:
        """Generate for at least `seconds` seconds, and return the seconds per token."""
        began, calls = time.perf_counter(), 0
        while True:
            self.generate()
            calls += 1
            if (passed := time.perf_counter() - began) >= seconds:
                return passed / (calls * self.tokens)


@dataclass
class TurnTimer:
    """Times arms in turns with their baselines.

    Attributes:
        rounds: the number of rounds for steps, and for decoding.
        seconds: the least duration of a window.
        on_busy: receives the share of the cores that other processes use, if the machine is busy.
    """

    rounds: int = ROUNDS
    seconds: float = SECONDS
    on_busy: Callable[[float], None] = lambda share: None

    def __post_init__(self) -> None:
        self.load = LoadMeter()
        self.ready: dict[str, StepTimer | DecodeTimer] = {}

    def measure(
        self,
        folder: StudyFolder,
        arms: Sequence[TimedArm],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Time all arms that have a baseline, and store the times of each arm as soon as they are known.

        Raises:
            UserError: if there are several processes, or no arm has a baseline.
        """
        if multi_process():
            raise UserError("arms cannot be timed while several processes share a study", remedy="Use one process.")
        bases = {arm.name: arm for arm in arms if arm.against is None}
        pairs = sorted(((bases[arm.against], arm) for arm in arms if arm.against in bases), key=lambda p: p[0].name)
        if not pairs:
            problem = "no arm with an ended run can be timed against a baseline with an ended run"
            raise UserError(problem, file=folder.where, remedy="Train the missing runs with `taetpu run STUDY`.")
        file, total = CostsFile(folder), len(pairs) * 2 * self.rounds
        for number, (base, arm) in enumerate(pairs):
            report = partial(self._report, progress, 2 * self.rounds * number, total)
            report(0)
            timing, protocol = self._pair(base, arm, report)
            file.add(timings={arm.name: timing}, protocol={arm.name: protocol})
            self.ready = {key: timer for key, timer in self.ready.items() if key.startswith(f"{base.name}/")}
        progress(total, total)

    def _report(self, progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
        progress(before + done, total)

    def _pair(self, base: TimedArm, arm: TimedArm, report: Callable[[int], None]) -> tuple[Timing, Protocol]:
        """Time an arm and its baseline."""
        length = min(base.opened.seq_len, arm.opened.seq_len)
        prompt = max(1, min(PROMPT, length // 4))
        protocol: Protocol = {
            "seconds": self.seconds, "layout": asdict(arm.layout), "prompt": prompt,
            "tokens": max(1, min(TOKENS, length - prompt)),
        }  # fmt: skip
        timing: Timing = {
            "run": arm.run.id, "against": base.name, "date": _today(), "before": None,
            "same_program": base.program == arm.program, "step": [], "decode": [], "missing": {},
        }  # fmt: skip
        if timing["same_program"]:
            return timing, protocol
        builders: dict[str, Callable[[TimedArm], StepTimer | DecodeTimer]] = {
            "step": lambda each: step_timer(each.work, each.layout),
            "decode": lambda each: DecodeTimer(each.opened, protocol["prompt"], protocol["tokens"]),
        }
        if not arm.trains:
            del builders["step"]
        for place, (what, build) in enumerate(builders.items()):
            try:
                timers = {each.name: self._timer(each, f"{what}/{prompt}", build).window for each in (base, arm)}
            except Exception as error:
                if not isinstance(error, UserError) and not out_of_memory(error):
                    raise
                timing["missing"][what] = error.problem if isinstance(error, UserError) else "out of memory"
                continue
            if timing["before"] is None and (before := self.load.probe()) is not None:
                timing["before"] = before
                self._check(before)
            for number, done in enumerate(take_turns(timers, self.rounds, self.seconds, self.load)):
                timing["step" if what == "step" else "decode"].append(done)
                self._check(done["others"])
                report(place * self.rounds + number + 1)
        return timing, protocol

    def _timer(
        self, arm: TimedArm, what: str, build: Callable[[TimedArm], StepTimer | DecodeTimer]
    ) -> StepTimer | DecodeTimer:
        """Return the timer of an arm, after a window that is not counted. Those of the last baseline are kept."""
        key = f"{arm.name}/{what}"
        if key not in self.ready:
            timer = build(arm)
            timer.window(self.seconds)
            self.ready[key] = timer
        return self.ready[key]

    def _check(self, share: float | None) -> None:
        if share is not None and share >= BUSY:
            self.on_busy(share)
