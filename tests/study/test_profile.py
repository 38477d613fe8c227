"""`--profile N`: where the time goes, without a bit of the numbers changed, and never over an older profile."""

import json

import jax
import pytest
from tests.small import TINY
from tests.study.conftest import Interrupting

from taetpu.core.errors import UserError
from taetpu.spec.evaluation import Sample
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import PackStore, resolve_runs
from taetpu.study.run import parse_profile
from taetpu.study.trainer import StudyTrainer
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO
from taetpu.train.program import ProgramCache

STUDY = TINY.replace("steps: 6, batch_size: 4, eval_every: 6", "steps: 20, batch_size: 4, eval_every: 10")


@pytest.fixture
def profiled(tmp_path):
    """`profiled(root, callback=None, profile=0)`: what `taetpu run` trains, without what it makes of it.

    Packs of a test share their program, as those of a study do.
    """
    programs = ProgramCache()

    def sample(study):
        return Sample.from_config(study.arms[0].config, study.source(study.arms[0]))

    def run(root, callback=None, profile=0):
        file = tmp_path / "study.yaml"
        file.write_text(STUDY)
        loaded = load_study(file)
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        callback = callback or Callback()
        packs = PackStore(folder, resolve_runs(loaded, folder))
        packs.plan(loaded.sources, AUTO)
        trainer = StudyTrainer(folder, loaded.sources, callback, sample(loaded), profile, programs)
        callback.programs = programs.programs
        for pack in packs.missing_packs():
            callback.on_pack_begin(1, 1, pack.runs)
            assert trainer.train(pack) is None

    return run


def numbers(root):
    """All that was trained and measured, by file; times left out."""
    return {
        path.relative_to(root): path.read_bytes()
        for path in sorted(root.glob("tiny/runs/**/*"))
        if path.is_file() and "times" not in path.parts
    }


def summaries(root):
    return [json.loads(file.read_text()) for file in sorted(root.glob("tiny/profile/*/*/summary.json"))]


WIDTH = 4
"""The baseline's three runs, and one of them again so that both devices have as many."""


class Forgetful(Callback):
    """Has jax forget the program of a step at the first evaluation, so that it is compiled again."""

    def on_evaluate(self, step, run, values):
        if step == 10:
            for program in self.programs.values():
                program.advance.clear_cache()


@pytest.mark.slow
def test_a_profile_changes_no_bit_covers_its_steps_and_names_recompiles(tmp_path, profiled):
    profiled("plain")
    profiled("traced", Forgetful(), profile=7)
    assert numbers(tmp_path / "traced") == numbers(tmp_path / "plain")
    (found,) = summaries(tmp_path / "traced")
    assert (found["steps"], found["first_step"], found["platform"]) == (7, 1, "cpu")
    # What a step does is done in each place of the pack at each of the seven steps, and not by what is around.
    assert 7 * WIDTH in {op["times"] for op in found["costly"]}
    assert found["compute"] + found["transfer"] + found["idle"] == pytest.approx(1)
    compiles = [(one["program"], one["step"], one["again"]) for one in found["compiles"]]
    assert [one for one in compiles if one[2]] == [("advance", 10, True)]
    text = next((tmp_path / "traced").glob("tiny/profile/*/*/summary.txt"))
    assert "advance" in next(line for line in text.read_text().splitlines() if "True" in line)
    assert len(list(text.parent.glob("plugins/profile/*/*.xplane.pb"))) == 1  # where XProf looks


@pytest.mark.slow
def test_resumed_packs_are_profiled_beside_what_was_and_done_ones_are_not(tmp_path, profiled):
    profiled("plain", profile=1)
    (first,) = summaries(tmp_path / "plain")
    compiles = {(one["program"], one["step"]) for one in first["compiles"] if not one["again"]}
    assert {("init", 0), ("advance", 0), ("evaluate", 10)} <= compiles  # expected, all of them
    assert len(compiles) == len(first["compiles"])
    with pytest.raises(KeyboardInterrupt):
        profiled("cut", Interrupting("on_steps", 12), profile=3)
    old = {path: path.read_bytes() for path in (tmp_path / "cut").glob("tiny/profile/**/*.pb")}
    assert len(old) == 1  # the trace of a pack that was stopped stays
    profiled("cut", profile=100)
    noted = [json.loads(file.read_text()) for file in (tmp_path / "cut").glob("tiny/runs/*/*/times/10-20.json")]
    assert [one["series"]["step_seconds"]["value"] for one in noted] == [["NaN"]] * 3  # what was traced is not timed
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "plain")
    (found,) = summaries(tmp_path / "cut")
    assert (found["first_step"], found["steps"]) == (11, 9)  # no more were left
    assert all(path.read_bytes() == data for path, data in old.items())
    profiled("cut", profile=3)
    assert len(summaries(tmp_path / "cut")) == 1


@pytest.mark.slow
def test_a_profiler_that_is_taken_ends_no_training(tmp_path, profiled):
    class Hears(Callback):
        told: tuple = ()

        def on_profile(self, where, summary, problem):
            self.told = summary, problem

    hears, options = Hears(), jax.profiler.ProfileOptions()
    options.python_tracer_level = options.host_tracer_level = 0
    with jax.profiler.trace(tmp_path / "another", profiler_options=options):
        profiled("taken", hears, profile=3)
    assert hears.told[0] is None
    assert "Only one profile" in hears.told[1]
    assert len(list((tmp_path / "taken").glob("tiny/runs/*/*/result.json"))) == 3


@pytest.mark.slow
def test_a_pack_that_goes_on_with_other_flags_is_warned_about(tmp_path, profiled, monkeypatch):
    """Flags as this process would have been given them: they are read by the note alone, jax has started long ago."""

    class Hears(Interrupting):
        def __init__(self, step):
            super().__init__("on_steps", step)
            self.told = []

        def on_xla_flags_changed(self, plan, before, now):
            self.told.append((before, now))

    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    with pytest.raises(KeyboardInterrupt):
        profiled("cut", Hears(12))  # behind the checkpoint at 10
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_min_max=true")
    hears = Hears(10**9)
    profiled("cut", hears)
    assert hears.told == [({}, {"xla_flags": ["--xla_cpu_enable_fast_min_max=true"]})]
    result = next((tmp_path / "cut").glob("tiny/runs/baseline/*/result.json"))
    assert json.loads(result.read_text())["environment"]["xla_flags"] == ["--xla_cpu_enable_fast_min_max=true"]


def test_fewer_steps_than_none_cannot_be_profiled():
    with pytest.raises(UserError, match="-1"):
        parse_profile(-1)
