"""Layouts are tried where it pays, in processes of their own, and what was measured is not measured again."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest

from taetpu.spec.resolved_study import RunSpec
from taetpu.train import bench, calibrate, plan
from taetpu.train.bench import Bench, Child, Here, NotMeasured
from taetpu.train.calibrate import Calibration, Shape, growing_widths, measured, remember, remembered, search, soonest
from taetpu.train.callbacks import Watcher
from taetpu.train.plan import AUTO, Group, Layout, Work, parse_packing

ALWAYS = parse_packing("measured")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packs"


@pytest.fixture
def shape(make, tmp_path):
    """`shape(runs, task=..., model=..., **train)`: so many runs of one structure."""

    def made(runs=8, *args, **train):
        config = make(*args, **train)
        members = tuple(RunSpec("baseline", seed, config, f"{seed:x}") for seed in range(runs))
        return Shape(Work(Group(frozenset(), members), config.task.prepare(tmp_path), "float32"), tmp_path, ())

    return made


@pytest.fixture
def no_children(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def fastest(shape, packing, seconds):
    """What a calibration finds where layouts take so long."""
    return soonest(shape.work.size, search(shape, packing, seconds))


class Told(Watcher):
    """Keeps what it hears of a calibration."""

    def __init__(self):
        self.tried, self.found = [], []

    def calibrating(self, runs, layout, number):
        self.tried.append(layout)

    def calibrated(self, runs, layout, problem=""):
        self.found.append((layout, problem))


# --- which layouts are tried -----------------------------------------------------------------------------------------


def test_what_was_measured_with_other_flags_does_not_count(shape, monkeypatch):
    work = shape(8)
    remember(work, {Layout(4, 2): 1.0})
    assert remembered(work)
    flags = os.environ["XLA_FLAGS"]
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_dump_to=elsewhere")  # changes no program
    assert remembered(work)
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_enable_fast_math=false")
    assert not remembered(work)


def test_widths_grow_from_a_run_a_device_to_all_runs_in_one_pack():
    for devices in (1, 2, 4):
        for runs in range(devices, 70):
            for most in (devices, 3 * devices + 1, 64):
                found = growing_widths(runs, most, devices)
                assert found == sorted(set(found))
                assert found[0] == devices
                assert all(width % devices == 0 and width <= most for width in found)
                assert len(found) <= 2 + math.log2(min(runs, most) / devices)
                if runs <= most:
                    assert -(-runs // found[-1]) <= 1 + runs // (2 * devices)
    assert growing_widths(9, 64, 2) == [2, 4, 6, 10]
    assert growing_widths(32, 64, 1) == [1, 2, 4, 8, 16, 32]
    assert growing_widths(5, 1, 2) == []


@pytest.fixture
def vectorised(monkeypatch):
    """Which widths are tried where the runs of a device are vectorised, as they are on accelerators."""
    monkeypatch.setattr(calibrate, "widths", growing_widths)


def test_the_layout_that_is_soonest_through_all_runs_wins_and_wider_ones_than_slow_ones_are_not_tried(
    shape, vectorised
):
    tried = []

    def seconds(layout):  # two devices that are fastest with two runs each
        tried.append(layout)
        each = layout.width / layout.devices
        return (0.6 if layout.devices == 1 else 1.0) * each * (1 + max(0, each - 2))

    assert fastest(shape(32), AUTO, seconds) == Layout(2, 2)
    assert Layout(16, 2) not in tried
    assert Layout(1) in tried
    assert fastest(shape(3), AUTO, lambda layout: layout.width**0.1) == Layout(3)  # not four: a place would be empty
    assert fastest(shape(5), parse_packing(2), lambda layout: layout.width**0.1).width <= 2


def test_on_a_cpu_only_the_cores_are_tried_since_the_runs_of_one_take_turns(shape):
    def tried(runs, packing=AUTO):
        found = []
        search(shape(runs), packing, lambda layout: found.append(layout) or float(layout.width))
        return found

    assert tried(8) == [Layout(8, 2), Layout(8)]
    assert tried(3) == [Layout(4, 2), Layout(3)]
    assert tried(100) == [Layout(50, 2), Layout(25)]  # as few packs as may be
    assert tried(1) == [Layout(1, 2), Layout(1)]  # the batch of a run alone may be divided
    assert tried(3, parse_packing("off")) == [Layout(1, 2), Layout(1)]


def test_layouts_that_do_not_fit_never_win(shape, monkeypatch, vectorised):
    assert fastest(shape(8), AUTO, lambda layout: math.inf if layout.width > 2 else 1.0) == Layout(2, 2)
    assert fastest(shape(8), AUTO, lambda layout: math.inf) is None
    state, step = (f(shape(8).work.config, shape(8).work.source) for f in (plan.state_bytes, plan.step_bytes))
    monkeypatch.setattr(plan, "memory_bytes", lambda: 4 * state + 2 * step)
    tried = []
    search(shape(8), AUTO, lambda layout: tried.append(layout) or 1.0)
    assert max(layout.width for layout in tried if layout.devices == 2) == 4


def test_loops_over_layers_are_unrolled_where_there_are_loops(shape):
    deep = shape(8, model={"num_layers": 9})
    assert fastest(deep, AUTO, lambda layout: layout.width / layout.unroll).unroll == max(calibrate.UNROLLS)
    assert fastest(deep, AUTO, lambda layout: layout.width * layout.unroll).unroll == 1
    assert fastest(shape(8), AUTO, lambda layout: layout.width / layout.unroll).unroll == 1
    apart = shape(8, model={"num_layers": 9, "layers": {4: {"ffn": "none"}}})  # two stacks of four, and one layer
    assert not apart.deep


def test_a_slow_layout_makes_room_and_the_rest_is_timed_in_turns():
    order = []

    class Scripted:
        """A layout that takes a known time; what a process would answer."""

        bytes = 1

        def __init__(self, layout):
            self.layout = layout

        def window(self, seconds):
            order.append(self.layout.width)
            if self.layout.width == 16:
                raise MemoryError
            return {1: 1.0, 2: 2.2, 4: 7.0, 8: 8.8}[self.layout.width]

        def close(self):
            order.append(-self.layout.width)

    with Bench(16, Scripted) as found:
        for width in (1, 2, 4, 8, 16):
            found.first_look(Layout(width))
        assert set(found.ready) == {Layout(1), Layout(2), Layout(8)}
        order.clear()
        found.finish()
        assert order == [1, 2, 8] * bench.ROUNDS
    assert order[-3:] == [-1, -2, -8]
    assert found.seconds[Layout(4)] == 7.0
    assert found.seconds[Layout(16)] == math.inf


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_what_was_measured_is_used_without_starting_a_process(shape, cache, no_children):
    remember(shape(8), {Layout(8, 2): 9.0, Layout(8): 5.0, Layout(16, 2): math.inf})
    watcher = Told()
    for packing in (AUTO, ALWAYS):
        assert Calibration(shape(8).folder, (), watcher)(shape(8).work, packing) == Layout(8)
    assert watcher.tried == []
    assert remembered(shape(8))[Layout(16, 2)] == math.inf
    assert len(list(cache.iterdir())) == 1


def test_what_a_deep_model_was_measured_at_is_known_again(shape, no_children):
    """Also where unrolling was tried for a layout that a later window showed not to be the best."""
    deep = shape(8, model={"num_layers": 9})
    known = {Layout(8, 2): 3.0, Layout(8, 2, 2): 2.0, Layout(8, 2, 4): 2.5, Layout(8): 2.8}
    remember(deep, known)
    assert Calibration(deep.folder)(deep.work, AUTO) == Layout(8, 2, 2)
    remember(deep, {**known, Layout(8): 1.0})
    assert Calibration(deep.folder)(deep.work, AUTO) == Layout(8)


def test_measurements_are_those_of_a_machine_and_a_shape(shape, monkeypatch):
    remember(shape(8), {Layout(2, 2): 1.0})
    same = [shape(3), shape(8, steps=99), shape(8, eval_every=3), shape(8, optimizer={"kind": "adamw", "lr": 0.5})]
    assert all(remembered(other) for other in same)
    others = [shape(8, model={"dim": 32}), shape(8, batch_size=8), shape(8, model={"ffn": "relu"}), shape(8, clip=None)]
    assert not any(remembered(other) for other in others)
    monkeypatch.setattr(calibrate, "cores", lambda: 64)
    assert not remembered(shape(8))


@pytest.mark.parametrize("content", ["{", "[]", '{"layouts": [{"width": 2}]}', '{"layouts": {"a": 1}}'])
def test_a_damaged_file_is_nothing_remembered(shape, cache, content):
    remember(shape(8), {Layout(2, 2): 1.0})
    (file,) = cache.iterdir()
    file.write_text(content)
    assert remembered(shape(8)) == {}


def test_short_work_is_not_worth_measuring_and_long_work_is(shape, no_children):
    short, long = shape(8), shape(8, steps=10**9)
    auto = Calibration(short.folder, (), Told())
    assert auto(short.work, AUTO) is None  # and no process was started
    assert not auto.wanted(short.work, AUTO)
    assert auto.wanted(long.work, AUTO)
    assert auto.wanted(short.work, ALWAYS)
    assert not auto.wanted(long.work, parse_packing(4))
    assert auto.wanted(shape(1, steps=10**9).work, ALWAYS)
    assert not auto.wanted(shape(1, steps=10**9, batch_size=3).work, ALWAYS)  # there is nothing to choose
    assert Calibration(long.folder)(long.work, AUTO) is None  # who only asks what is known measures nothing


def test_what_cannot_be_measured_is_told_and_left_to_the_rule_of_thumb(shape, monkeypatch, cache):
    broken = partial(Child, command=[sys.executable, "-c", "raise SystemExit('no such module')"])
    monkeypatch.setattr(calibrate, "Child", broken)
    watcher = Told()
    assert Calibration(shape(8).folder, (), watcher)(shape(8).work, ALWAYS) is None
    ((layout, problem),) = watcher.found
    assert layout is None
    assert "no such module" in problem
    assert not cache.exists()


# --- processes -------------------------------------------------------------------------------------------------------


def gone(pids, seconds=10.0) -> bool:
    """Have these processes ended within so long?"""
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_process_that_is_killed_had_too_little_memory(shape):
    with pytest.raises(MemoryError, match="SIGKILL"):
        Child(shape(8).request(Layout(2, 2)), ["sh", "-c", "kill -9 $$"])


@pytest.mark.slow
def test_every_layout_is_timed_and_one_that_dies_is_ruled_out(shape, monkeypatch):
    """Real processes; the one of four runs on one core is killed while it compiles."""
    monkeypatch.setattr(bench, "WINDOW", 0.2)
    children = []

    class Killing(Told):
        def calibrating(self, runs, layout, number):
            super().calibrating(runs, layout, number)
            if layout == Layout(4):
                threading.Thread(target=self.kill, args=(set(children_of(os.getpid())),)).start()
            children.extend(children_of(os.getpid()))

        def kill(self, before):
            while not (new := set(children_of(os.getpid())) - before):
                time.sleep(0.01)
            time.sleep(0.5)
            os.kill(new.pop(), signal.SIGKILL)

    watcher, work = Killing(), shape(4, model={"num_layers": 1})
    found = measured(work, ALWAYS, watcher)
    assert found[Layout(4)] == math.inf
    assert set(found) == {Layout(4), Layout(4, 2)}
    assert 0 < found[Layout(4, 2)] < 1
    assert children
    assert gone(children)


@pytest.mark.slow
def test_a_layout_can_be_timed_in_this_process_as_it_is_on_accelerators(shape):
    work = shape(4, model={"num_layers": 1}).work

    def start(layout):
        return Here(work.config, work.source, layout, live=frozenset(), precision="float32")

    with Bench(4, start) as found:
        assert 0 < found.first_look(Layout(2, 2)) < 1
        trial = found.ready[Layout(2, 2)]
        assert int(trial.state.step[0]) > 10  # it has really trained
    assert found.ready == {}


def children_of(pid) -> list[int]:
    """Processes that try layouts, below one."""
    try:
        below = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in below if "taetpu.train.trial" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_process_that_sees_other_data_measures_nothing(shape):
    work = shape(8)
    with pytest.raises(NotMeasured, match="other data"):
        Child({**work.request(Layout(2, 2)), "data": "another"})


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_calibrates(tmp_path, how):
    from tests.small import STUDY

    (tmp_path / "study.yaml").write_text(STUDY)
    run = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--pack", "measured"]
    environ = {**os.environ, "TAETPU_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(run, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        while not (children := children_of(process.pid)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        time.sleep(1)  # in the middle of an import or a compile
        children += children_of(process.pid)
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]
    assert gone(children)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in said
        assert said.endswith("interrupted: the same command goes on from the last checkpoint\n")


COUNT = """
import json, subprocess, sys
from collections import Counter
from taetpu.core.runtime import prepare_jax
prepare_jax()
import jax
import taetpu
from taetpu.train import bench, pack
bench.WINDOW = 0.2
started = []
popen = subprocess.Popen.__init__
def counted(self, args, *rest, **settings):
    started.append(args)
    popen(self, args, *rest, **settings)
subprocess.Popen.__init__ = counted
missed = []
advance = pack.Program.advance.func
def watched(self):
    compiled = advance(self)
    def call(*args):
        events = Counter()
        def note(name, **_):
            events[name] += 1
        jax.monitoring.register_event_listener(note)
        out = compiled(*args)
        missed.append(events["/jax/compilation_cache/cache_misses"])
        jax.monitoring.unregister_event_listener(note)
        return out
    return call
pack.Program.advance.func = watched
outcome = taetpu.run("study.yaml", root=sys.argv[1], pack=sys.argv[2])
packs = json.load(open(sys.argv[1] + "/small/plan.json"))["packs"]
print(json.dumps({"trials": sum(a == bench.COMMAND for a in started), "missed": sum(missed), "calls": len(missed),
                  "packs": packs, "results": outcome.results["packs"]}))
"""


@pytest.mark.slow
def test_a_study_is_measured_once_and_what_was_compiled_to_measure_is_not_compiled_again(tmp_path):
    from tests.small import STUDY

    (tmp_path / "study.yaml").write_text(STUDY)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    environ["TAETPU_CACHE"] = str(tmp_path / "cache")

    def start(root, pack):
        run = [sys.executable, "-c", COUNT, root, pack]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first, second, short = start("one", "measured"), start("two", "auto"), start("three", "off")
    assert first["trials"] == 2
    assert first["missed"] == 0  # the step's program was in the cache already
    assert first["calls"] > 0
    assert {pack["chosen"] for pack in first["packs"]} == {"measured"}
    assert second["trials"] == 0
    assert second["packs"] == first["packs"]
    assert [pack["chosen"] for pack in second["results"]] == ["measured"]
    assert short["trials"] == 0
    assert [pack["width"] for pack in short["packs"]] == [1] * 4
