"""`--profile N` shows where the time goes. It changes no number and never overwrites an older profile."""

import json

import jax
import pytest
from tests.small import TINY
from tests.study.conftest import Interrupting

from taetpu.core.errors import UserError
from taetpu.spec.eval_sample import Sample
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import PackStore, resolve_runs
from taetpu.study.pack_training import StudyTrainer
from taetpu.study.run import parse_profile
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO
from taetpu.train.program_cache import ProgramCache

STUDY = TINY.replace("steps: 6, batch_size: 4, eval_every: 6", "steps: 20, batch_size: 4, eval_every: 10")


@pytest.fixture
def profiled(tmp_path):
    """Return `profiled(root, callback=None, profile=0)`, which trains the packs of a study without analysing it.

    The packs of a test share their program, like the packs of a study.
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
    """Return all trained and measured files except the times, by path."""
    return {
        path.relative_to(root): path.read_bytes()
        for path in sorted(root.glob("tiny/runs/**/*"))
        if path.is_file() and "times" not in path.parts
    }


def summaries(root):
    return [json.loads(file.read_text()) for file in sorted(root.glob("tiny/profile/*/*/summary.json"))]


WIDTH = 4
"""The number of runs of the pack: the three runs of the baseline and a copy, so that both devices train two."""


class Forgetful(Callback):
    """Clears JAX's cache of the train step at the first evaluation, so that the step is compiled again."""

    def on_evaluate(self, step, run, values):
        if step == 10:
            for program in self.programs.values():
                program.advance.clear_cache()


@pytest.mark.slow
def test_profile_changes_no_bit_covers_its_steps_and_names_recompiles(tmp_path, profiled):
    profiled("plain")
    profiled("traced", Forgetful(), profile=7)
    assert numbers(tmp_path / "traced") == numbers(tmp_path / "plain")
    (found,) = summaries(tmp_path / "traced")
    assert (found["steps"], found["first_step"], found["platform"]) == (7, 1, "cpu")
    # An operation of a step runs once for each run of the pack in each of the seven steps.
    assert 7 * WIDTH in {op["times"] for op in found["costly"]}
    assert found["compute"] + found["transfer"] + found["idle"] == pytest.approx(1)
    compiles = [(one["program"], one["step"], one["again"]) for one in found["compiles"]]
    assert [one for one in compiles if one[2]] == [("advance", 10, True)]
    text = next((tmp_path / "traced").glob("tiny/profile/*/*/summary.txt"))
    assert "advance" in next(line for line in text.read_text().splitlines() if "True" in line)
    assert len(list(text.parent.glob("plugins/profile/*/*.xplane.pb"))) == 1  # where XProf looks


@pytest.mark.slow
def test_resumed_packs_are_profiled_separately_and_finished_packs_are_not(tmp_path, profiled):
    profiled("plain", profile=1)
    (first,) = summaries(tmp_path / "plain")
    compiles = {(one["program"], one["step"]) for one in first["compiles"] if not one["again"]}
    assert {("init", 0), ("advance", 0), ("evaluate", 10)} <= compiles  # expected, all of them
    assert len(compiles) == len(first["compiles"])
    with pytest.raises(KeyboardInterrupt):
        profiled("cut", Interrupting("on_steps", 12), profile=3)
    old = {path: path.read_bytes() for path in (tmp_path / "cut").glob("tiny/profile/**/*.pb")}
    assert len(old) == 1  # the trace of a stopped pack is kept
    profiled("cut", profile=100)
    noted = [json.loads(file.read_text()) for file in (tmp_path / "cut").glob("tiny/runs/*/*/times/10-20.json")]
    assert [one["series"]["step_seconds"]["value"] for one in noted] == [["NaN"]] * 3  # traced steps are not timed
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "plain")
    (found,) = summaries(tmp_path / "cut")
    assert (found["first_step"], found["steps"]) == (11, 9)  # no more were left
    assert all(path.read_bytes() == data for path, data in old.items())
    profiled("cut", profile=3)
    assert len(summaries(tmp_path / "cut")) == 1


@pytest.mark.nightly
def test_second_profiler_does_not_end_training(tmp_path, profiled):
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


def test_negative_number_of_profiled_steps_is_refused():
    with pytest.raises(UserError, match="-1"):
        parse_profile(-1)
