"""Packs that train side by side, in processes of their own: the bits of one after another, none harmed by another."""

import os
import re
import sys
import time
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest
from tests.small import TINY
from tests.study.killed_side_by_side import finish, kill_at_random, start, stored

from taetpu.core.errors import UserError
from taetpu.report.time_spent import total_parts
from taetpu.spec.loading import load_study
from taetpu.store.addresses import find_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study import executor, side_by_side
from taetpu.study.pack_store import PackStore, stored_plans
from taetpu.study.run import Options, run_study
from taetpu.study.side_by_side import fits_beside
from taetpu.study.workers import Workers
from taetpu.train import beside
from taetpu.train import layout as layout_module
from taetpu.train.beside import core_seconds, finish_time, layouts_beside, packs_at_once
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO, RunGroup, Workload
from taetpu.train.memory import data_bytes, state_bytes, step_bytes
from taetpu.train.trainer import PackTrainer

STUDY = TINY.replace("steps: 6", "steps: 24").replace("eval_every: 6", "eval_every: 12, checkpoint: eval") + (
    "seeds: 2\narms:\n  no-ffn: {model.ffn: none}\n  relu: {model.ffn: relu}\n  low: {train.optimizer.lr: 1e-4}\n"
)


class Seen(Callback):
    """Keeps the events of packs: the arms of each pack that began, and of each event, the arms of its pack."""

    def __init__(self):
        self.now: tuple[str, ...] = ()
        self.begun, self.steps, self.failed, self.split = [], [], [], []
        self.began = self.ended = 0.0
        self.early = -1

    def on_study_begin(self, study):
        self.early = len(workers())

    def _switch(self, runs):
        self.now = tuple(sorted({run.arm for run in runs}))

    def on_train_begin(self, run_steps):
        self.began = time.monotonic()

    def on_pack_end(self, runs):
        self.ended = time.monotonic()

    def on_pack_begin(self, number, total, runs):
        self._switch(runs)
        self.begun.append((number, total, self.now))

    def on_switch(self, runs):
        self._switch(runs)

    def on_steps(self, step, loss):
        self.steps.append((self.now, step, len(loss)))

    def on_evaluate(self, step, run, values):
        assert run.arm in self.now

    def on_pack_failed(self, runs, error):
        self.failed.append(({run.arm for run in runs}, error))

    def on_pack_split(self, runs, plans, error):
        self.split.append((len(runs), [plan.width for plan in plans]))


reserve = Workers.reserve


def workers() -> list[psutil.Process]:
    """Return the processes that train packs for this process."""
    return [child for child in psutil.Process().children() if "pack_worker" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Return `train(root, callback=None, text=STUDY, place=None)`, which trains side by side whatever packs cost."""
    base = tmp_path_factory.mktemp("side")

    def run(root, callback=None, text=STUDY, place=None):
        (file := base / f"{root}.yaml").write_text(text)
        study = load_study(file)
        folder = StudyFolder(open_store(place or base / root), study.name)
        return run_study(study, folder, callback or Callback(), Options()), folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "LEAST_SECONDS", 0)
        yield run


@pytest.fixture
def threads(monkeypatch):
    """Train packs side by side in threads, as on accelerators."""
    for module in (side_by_side, executor):
        monkeypatch.setattr(module, "in_threads", lambda: True)


@pytest.fixture(scope="module")
def whole(train):
    """The study trained side by side without disturbance: the events, and the folder."""
    seen = Seen()
    return seen, train("whole", seen)[1]


@pytest.mark.slow
def test_results_are_those_of_the_same_packs_one_after_another(train, whole, monkeypatch):
    seen, folder = whole
    plans = stored_plans(folder)
    assert {plan.layout.devices for plan in plans} == {1}
    assert sorted(len(plan.runs) for plan in plans) == [2, 2, 4]
    assert [(number, total) for number, total, _ in seen.begun] == [(1, 3), (2, 3), (3, 3)]
    assert seen.begun[0][2] == ("baseline", "low")  # the longest first
    last = {arms: max(step for now, step, _ in seen.steps if now == arms) for _, _, arms in seen.begun}
    assert set(last.values()) == {24}
    assert all(runs == (4 if len(arms) == 2 else 2) for arms, _, runs in seen.steps)

    monkeypatch.setattr(executor, "fits_beside", lambda queue: False)
    monkeypatch.setattr(Workers, "reserve", lambda self, count: None)
    _, other = train("turn", alone := Seen())
    assert [plan.data for plan in stored_plans(other)] == [plan.data for plan in plans]
    assert len(stored(folder)) == 9
    assert stored(folder) == stored(other)
    assert {step for step in alone.steps if step[1] == 24} <= set(seen.steps)


@pytest.mark.slow
def test_workers_start_while_a_study_is_checked_and_none_outlives_it(train, whole, monkeypatch, tmp_path):
    assert whole[0].early == 2
    assert workers() == []
    (tmp_path / "fails.py").write_text(PLUGIN)
    monkeypatch.setenv("TAETPU_TEST_DRIVER", str(os.getpid()))
    arms = "  zero: {model.ffn: fails}\n  one: {model.ffn: {kind: fails, number: 1}}\n"  # compute the same
    began = []
    monkeypatch.setattr(Workers, "reserve", lambda self, count: began.append(count) or reserve(self, count))
    with pytest.raises(UserError):
        train("refused", text=f"plugins: [{tmp_path / 'fails.py'}]\n{STUDY}{arms}")
    assert began == [2]
    assert workers() == []


@pytest.mark.slow
def test_workers_do_not_import_from_the_folder_where_a_study_is_started(tmp_path):
    """The command `taetpu` imports nothing from there either, so a file `queue.py` beside a study does no harm."""
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "queue.py").write_text("raise RuntimeError('imported')\n")
    finish(start(tmp_path, "root", "-P"))
    assert {run.status() for run in find_study(tmp_path / "root").runs()} == {"done"}


def test_times_of_packs_that_train_beside_others_are_not_kept(whole):
    _, folder = whole
    times = [run.times() for run in folder.runs()]
    assert all(np.isnan(each["step_seconds"].value).all() for each in times)
    assert all(np.isnan(each["forward_seconds"].value).all() for each in times)
    assert all((each["seconds"].value > 0).all() for each in times)


def test_the_times_of_workers_fill_the_wall_time_of_their_cores(whole):
    """Each core's time is that of the packs it trained, which includes the start of its worker, and its last wait."""
    seen, folder = whole
    times = folder.read_pack_times()
    packs = [times.pop(plan.id) for plan in stored_plans(folder)]
    assert all(sum(pack["parts"].values()) == pytest.approx(pack["seconds"], abs=0.01) for pack in packs)
    waits = sorted(pack["parts"]["waited"] for pack in packs)
    assert waits[0] < 0.25 * waits[1]  # the third pack has a worker that the first two started
    assert [set(wait["parts"]) for wait in times.values()] == [{"waited"}]
    total = sum(total_parts([*packs, *times.values()]).values())
    cores, wall = 2, seen.ended - seen.began
    assert wall * cores - 3.0 <= total <= wall * cores + 0.1  # the driver plans, and packs load between their times
    assert sum(pack["arms"].get("baseline", 0) for pack in packs) == 2


@pytest.mark.slow
def test_a_pack_whose_process_is_killed_is_halved_and_the_others_are_unharmed(train):
    class Killing(Seen):
        """Kills the process of the widest pack once, as the kernel does where memory runs out."""

        def on_pack_begin(self, number, total, runs):
            super().on_pack_begin(number, total, runs)
            if number == 1:
                min(workers(), key=psutil.Process.create_time).kill()

    seen = Killing()
    outcome, folder = train("killed", seen)
    assert seen.split == [(4, [2, 2])]
    assert not outcome.failed
    assert sorted(len(plan.runs) for plan in stored_plans(folder)) == [2, 2, 2, 2]
    assert all(run.status() == "done" for run in folder.runs())
    assert workers() == []


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_the_study_goes_on_later(train, whole):
    class Interrupting(Seen):
        def on_steps(self, step, loss):
            super().on_steps(step, loss)
            if step >= 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("cut", Interrupting())
    assert workers() == []
    _, folder = train("cut")
    assert stored(folder) == stored(whole[1])


@pytest.mark.slow
def test_threads_train_on_devices_of_their_own_with_the_same_bits(train, whole, threads, monkeypatch):
    monkeypatch.setattr(Workers, "spawn", None)  # no process starts
    seen = Seen()
    _, folder = train("threads", seen)
    assert [plan.data for plan in stored_plans(folder)] == [plan.data for plan in stored_plans(whole[1])]
    assert sorted(seen.begun) == sorted(whole[0].begun)
    assert set(seen.steps) >= {step for step in whole[0].steps if step[1] == 24}
    assert stored(folder) == stored(whole[1])
    assert all(np.isnan(run.times()["step_seconds"].value).all() for run in folder.runs())


@pytest.mark.slow
def test_a_thread_without_memory_halves_its_pack_and_ctrl_c_stores_what_others_trained(
    train, whole, threads, monkeypatch, tmp_path
):
    class Interrupting(Seen):
        def on_steps(self, step, loss):
            super().on_steps(step, loss)
            if self.split and step >= 12:
                raise KeyboardInterrupt

    def run(self):
        if self.plan.width == 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        trained(self)

    trained = PackTrainer.run
    monkeypatch.setattr(PackTrainer, "run", run)
    with pytest.raises(KeyboardInterrupt):
        train("stopped", seen := Interrupting(), place=tmp_path / "stopped")
    assert seen.split == [(4, [2, 2])]
    folder = StudyFolder(open_store(tmp_path / "stopped"), "tiny")
    done = any(run.status() == "done" for run in folder.runs())
    assert done or any(folder.pack(plan.id).steps() for plan in stored_plans(folder))
    outcome, _ = train("stopped", place=tmp_path / "stopped")
    assert not outcome.failed
    assert stored(folder, ("no-ffn", "relu")) == stored(whole[1], ("no-ffn", "relu"))


PLUGIN = """\
import os
import equinox as eqx
from taetpu.plugin import Component, register

@register("ffn", "fails")
class FailsConfig(Component):
    number: int = 0

    def init(self, dims, *, key):
        return Fails()

class Fails(eqx.Module):
    def __call__(self, x, ctx):
        if os.getpid() != int(os.environ["TAETPU_TEST_DRIVER"]):
            raise RuntimeError("here")
        return x
"""


@pytest.mark.slow
def test_others_are_unharmed_by_a_plug_in_that_raises_and_by_runs_that_diverge(train, whole, monkeypatch, tmp_path):
    (tmp_path / "fails.py").write_text(PLUGIN)
    monkeypatch.setenv("TAETPU_TEST_DRIVER", str(os.getpid()))
    arms = "  fails: {model.ffn: fails}\n  wild: {model.ffn: gelu-erf, train.optimizer.lr: 1e30}\n"
    seen = Seen()
    outcome, folder = train("harmed", seen, f"plugins: [{tmp_path / 'fails.py'}]\n{STUDY}{arms}")
    ((failed, error),) = seen.failed
    assert failed == {"fails"}
    assert isinstance(error, UserError)
    assert error.line == 15
    assert "RuntimeError" in error.problem
    assert [{run.arm for run in failure.runs} for failure in outcome.failed] == [{"fails"}]
    ended = {arm["name"]: arm["diverged"] for arm in outcome.results["arms"]}
    assert ended["wild"] == 2
    same = ("baseline", "no-ffn", "relu", "low")
    assert stored(folder, same) == stored(whole[1], same)


def test_kinds_that_no_file_defines_are_trained_in_this_process(whole):
    _, folder = whole
    queue = [PackStore(folder).load_pack(plan) for plan in stored_plans(folder)]
    assert fits_beside(queue)
    assert not fits_beside(queue[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(queue[0].config.model.layers[0].mixer), "__module__", "__main__")
        assert not fits_beside(queue)


def test_a_damaged_module_of_the_report_stops_no_training(monkeypatch, tmp_path):
    (tmp_path / "damaged_report.py").write_text("import no_such_module")
    (tmp_path / "intact_report.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(side_by_side, "AFTER_TRAINING", ("damaged_report", "intact_report"))
    side_by_side._prepare_report()
    assert ("damaged_report" in sys.modules, "intact_report" in sys.modules) == (False, True)
    del sys.modules["intact_report"]


def test_longest_first_on_the_first_that_is_free():
    assert finish_time([4, 3, 3, 2, 2, 2], 2) == 8
    assert finish_time([5], 3) == 5


@pytest.fixture
def works(whole):
    """Return `works(sizes)`, which returns a workload of each size, all of one structure."""
    _, folder = whole
    pack = PackStore(folder).load_pack(stored_plans(folder)[0])
    study = load_study(Path(folder.where).parents[1] / "whole.yaml")
    source = study.sources.prepare(pack.config)
    return lambda sizes: [Workload(RunGroup(frozenset(), pack.runs[:1] * n), source, "float32") for n in sizes]


@pytest.mark.parametrize(
    ("sizes", "devices", "expected"),
    [
        ([12, *[4] * 7], 2, 1),  # 20 runs for each core, and none waits for another
        ([12], 2, 2),  # a single pack has all cores
        ([12, 4], 2, 2),  # else 12 runs on one core
        ([3] * 9, 16, 3),  # nine packs of three in two turns; with one core each, three runs one after another
        ([3] * 9, 2, 1),  # on two cores, each pack of three would be padded to four
        ([1, 1], 8, 4),  # one after another, each with its batch of four divided
    ],
)
def test_packs_have_as_many_devices_as_end_soonest(works, monkeypatch, sizes, devices, expected):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    monkeypatch.setattr(beside, "LEAST_SECONDS", 0)
    all_works = works(sizes)
    choose = layouts_beside(all_works, AUTO)
    layouts = [choose(work)[0] for work in all_works]
    assert {layout.devices for layout in layouts} == {expected}
    if expected == 1:
        assert all(layout.width == work.size for layout, work in zip(layouts, all_works, strict=True))


def test_short_studies_train_one_pack_after_another(works, monkeypatch):
    all_works = works([4, 4])
    total = sum(core_seconds(work) * work.size for work in all_works)
    for least, devices in ((total, 1), (2 * total, 2)):
        monkeypatch.setattr(beside, "LEAST_SECONDS", least)
        assert {layouts_beside(all_works, AUTO)(work)[0].devices for work in all_works} == {devices}


def test_packs_share_accelerators_only_if_asked_for(works, monkeypatch):
    monkeypatch.setenv(beside.PACKS_PER_GPU, "3")
    assert packs_at_once([1] * 9) == jax.device_count()  # the cores of a CPU are not shared
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert packs_at_once([1] * 9) == 3 * jax.device_count()
    assert packs_at_once([2] * 9) == jax.device_count() // 2
    choose = layouts_beside(works([4, 4]), AUTO)
    assert {choose(work)[0].devices for work in works([4, 4])} == {1}
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv(beside.PACKS_PER_GPU, wrong)
        with pytest.raises(UserError, match=re.escape(repr(wrong))):
            packs_at_once([1, 1])


def test_memory_is_divided_among_packs_that_train_at_once(works, monkeypatch):
    (work,) = works([12])
    free = state_bytes(work.config, work.source)
    step = step_bytes(work.config, work.source) + data_bytes(work.source, work.execution)
    monkeypatch.setattr(layout_module, "memory_bytes", lambda: 2 * (step + 6 * free))
    assert work.widest(1, sharing=2) == 6
    assert work.widest(1) > 12


@pytest.mark.slow
def test_workers_store_in_a_bucket(train, whole, gs_root):
    _, folder = train("bucket", place=gs_root)
    assert stored(folder) == stored(whole[1])


@pytest.mark.slow
def test_a_study_that_is_killed_several_times_ends_with_the_same_bytes(tmp_path):
    """`python -m tests.study.killed_side_by_side 20 0` kills it more often."""
    assert kill_at_random(tmp_path, kills=3, seed=7, steps=1500) == []
