"""A study trains what is missing and nothing else, whatever happened before."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from tests.small import STUDY, TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import run_study
from taetpu.train.callbacks import Callback


def stored(folder) -> dict[str, bytes]:
    """Everything that must not depend on when and how often a study was stopped: not what tells how long it took."""
    root = Path(folder.where)
    kept = [p for p in root.rglob("*") if p.is_file() and not {"times", "times.json", "lock", "report"} & set(p.parts)]
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(kept)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A study that was run in one go: what came of it, and what it stored."""
    root = tmp_path_factory.mktemp("undisturbed")
    (root / "study.yaml").write_text(STUDY)
    loaded = load_study(root / "study.yaml")
    study = StudyFolder(open_store(root / "root"), loaded.name)
    return run_study(loaded, study, Callback()), stored(study)


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of it where `study` runs."""
    name = Path(undisturbed[0].report["html"]).parents[1]
    shutil.copytree(name, tmp_path / "root" / name.name)
    return StudyFolder(open_store(tmp_path / "root"), name.name)


def test_a_study_ends_with_results_report_and_models(undisturbed):
    outcome, files = undisturbed
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline", "low-lr"]
    assert outcome.results["complete"] is True
    baseline = outcome.results["arms"][0]
    values = [run["value"] for run in baseline["runs"]]
    assert len(set(values)) == 2  # two seeds, two numbers
    assert baseline["mean"] == pytest.approx(sum(values) / 2)
    assert {"results.json", "study.yaml", "plan.json"} <= set(files)
    for run in baseline["runs"]:
        at = f"runs/baseline/{run['seed']}-{run['id']}"
        result = json.loads(files[f"{at}/result.json"])
        assert result["metrics"]["val/loss"] == run["value"]
        assert result["steps"] == 20
        assert f"{at}/model/model.safetensors" in files
    assert all(Path(place).stat().st_size for place in outcome.report.values())
    assert not any(name.startswith("packs/") for name in files)  # the resume state goes when its runs are done


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("on_steps", 12),
        *(
            pytest.param(*at, marks=pytest.mark.slow)
            for at in (("on_steps", 1), ("on_evaluate", 10), ("on_evaluate", 20))
        ),
    ],
)
def test_interrupted_anywhere_it_ends_with_the_same_bytes(study, interrupting, undisturbed, event, step):
    with pytest.raises(KeyboardInterrupt):
        study(callback=interrupting(event, step))
    _, folder = study()
    assert stored(folder) == undisturbed[1]


class TakenAway(Callback):
    """Sends this process a SIGTERM once a step is reached, as a machine that is preempted does."""

    def __init__(self, step: int):
        self.step, self.resumes = step, []

    def on_resume(self, step):
        self.resumes.append(step)

    def on_steps(self, step, loss):
        if self.step and step >= self.step:
            self.step = 0
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_told_to_end_it_writes_a_checkpoint_between_borders_and_ends_with_the_same_numbers(study, undisturbed):
    with pytest.raises(KeyboardInterrupt):
        study(callback=TakenAway(6))
    again = TakenAway(0)
    _, folder = study(callback=again)
    left = again.resumes[0]
    assert 6 <= left < 20  # the next checkpoint was due at 20
    assert left % 4 == 0  # where a window of log_every ends
    before, now = undisturbed[1], stored(folder)
    same = [name for name in before if not re.search("/metrics/", name)]  # a segment more, of the same points
    assert [now[name] for name in same] == [before[name] for name in same]
    whole = StudyFolder(open_store(Path(undisturbed[0].report["html"]).parents[2]), folder.name)
    for run, one in zip(whole.runs(), folder.runs(), strict=True):
        assert {name: list(zip(*s, strict=True)) for name, s in run.metrics().items()} == {
            name: list(zip(*s, strict=True)) for name, s in one.metrics().items()
        }


@pytest.mark.slow
def test_looking_changes_nothing_that_is_trained(study, text, undisturbed):
    """Metrics are sampled by a program of their own, at their own steps, however often the study was stopped."""
    blind = text.replace(", metrics: {gradient-norm: {every: 6}}", "")
    assert blind != text
    _, folder = study(blind)
    seen, unseen = undisturbed[1], stored(folder)
    models = [name for name in seen if name.endswith("model.safetensors")]
    assert len(models) == 4
    assert [unseen[name] for name in models] == [seen[name] for name in models]
    _, folder = study(root="other")
    for run in folder.runs():
        series = run.metrics()
        assert list(series["gradient-norm/all"].step) == [6, 12, 18]
        assert all(series["gradient-norm/all"].value > 0)


def test_a_finished_study_trains_nothing(study, interrupting, finished, undisturbed):
    callback = interrupting("never")
    _, folder = study(callback=callback)
    assert callback.trained == 0
    assert stored(folder) == undisturbed[1]


@pytest.mark.slow
def test_added_arms_and_seeds_train_alone(study, text, finished):
    more = text.replace("seeds: 2", "seeds: 3") + "  no-ffn: {model.ffn: none}\n"
    before = stored(finished)
    outcome, folder = study(more)
    after = stored(folder)
    assert {name: after[name] for name in before if name.startswith("runs/")} == {
        name: data for name, data in before.items() if name.startswith("runs/")
    }
    runs = {arm["name"]: len(arm["runs"]) for arm in outcome.results["arms"]}
    assert runs == {"baseline": 3, "low-lr": 3, "no-ffn": 3}
    assert outcome.results["complete"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("batch_size: 4", "batch_size: 8", "base.train.batch_size was 4, and is 8 now"),
        ("lr: 1e-4", "lr: 1e-5", "arm 'low-lr' was"),
        ("seeds: 2", "seeds: 2\nmeasure: {primary: val/accuracy}", "what is measured differs from study 'small'"),
    ],
)
def test_another_study_of_the_same_name_is_refused_and_nothing_changes(
    study, text, finished, undisturbed, old, new, says
):
    with pytest.raises(UserError) as error:
        study(text.replace(old, new))
    assert says in str(error.value)
    assert stored(finished) == undisturbed[1]


@pytest.mark.slow
def test_a_diverged_run_is_an_outcome(study, text):
    wild = text.replace("lr: 1e-4", "lr: 1e25").replace("low-lr", "wild")
    outcome, _ = study(wild)
    arm = outcome.results["arms"][1]
    assert outcome.failed == []
    assert [run["outcome"] for run in arm["runs"]] == ["diverged"] * 2
    assert arm["mean"] is None
    assert arm["verdict"] == "inconclusive"  # two of two lost is not yet proof
    assert outcome.results["arms"][0]["diverged"] == 0


@pytest.mark.slow
def test_a_pack_that_raises_does_not_cost_the_others(study, text, monkeypatch):
    """The program of one structure cannot be built: its runs fail, the others are trained, and a rerun heals."""
    from taetpu.train.step import train_step

    def breaks(state, *, config, **settings):
        return train_step(state, config=config, **settings) if config.model.layers[0].ffn.kind != "relu" else 1 / 0

    more = text + "  relu: {model.ffn: relu}\n"
    with monkeypatch.context() as broken:
        broken.setattr("taetpu.train.program.train_step", breaks)
        outcome, _ = study(more)
    assert [type(f.error) for f in outcome.failed] == [ZeroDivisionError]
    assert {run.arm for run in outcome.failed[0].runs} == {"relu"}
    assert outcome.results["complete"] is False
    assert all(run["outcome"] == "finished" for run in outcome.results["arms"][0]["runs"])
    outcome, _ = study(more)
    assert outcome.failed == []
    assert outcome.results["complete"] is True


@pytest.mark.slow
def test_a_deleted_run_is_trained_again_to_the_same_bytes_and_its_neighbours_stay(study, finished, undisturbed):
    """What the store's own remedy for a damaged run says: delete its folder."""
    gone = next(run for run in finished.runs() if (run.arm, run.seed) == ("low-lr", 1))
    shutil.rmtree(gone.where)
    _, folder = study()
    assert stored(folder) == undisturbed[1]


@pytest.mark.slow
def test_an_arm_removed_before_it_was_trained_is_forgotten(study, text, interrupting):
    extra = text + "  relu: {model.ffn: relu}\n"
    with pytest.raises(KeyboardInterrupt):
        study(extra, callback=interrupting("on_steps", 1))
    outcome, folder = study(text)
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline", "low-lr"]
    assert outcome.results["complete"]
    assert {run.arm for run in folder.runs() if run.status() == "done"} == {"baseline", "low-lr"}


@pytest.mark.slow
def test_a_trained_arm_that_is_removed_stays_in_the_report(study, text, finished):
    outcome, _ = study(text.replace("low-lr", "lower-lr").replace("1e-4", "1e-5"))
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline", "low-lr", "lower-lr"]


@pytest.mark.slow
def test_an_arm_whose_data_changed_is_refused_before_anything_is_trained(study, tmp_path, interrupting):
    words = "the cat sat on the mat and ate the rat "
    task = "{kind: text, source: a.txt, seq_len: 8, val: 0.2}"
    base = re.sub(r"task: .*", f"task: {task}", TINY) + "arms:\n  low-lr: {train.optimizer.lr: 1e-4}\n"
    (tmp_path / "a.txt").write_text(words * 20)
    _, folder = study(base)
    before = stored(folder)
    (tmp_path / "a.txt").write_text(words * 19 + words[::-1])
    callback = interrupting("never")
    with pytest.raises(UserError, match="data"):
        study(base, callback=callback)
    assert callback.trained == 0
    assert stored(folder) == before
