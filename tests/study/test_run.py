"""A study trains exactly the missing runs, whatever happened before."""

import json
import os
import re
import shutil
import signal
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.store.backend import LocalStore, open_store
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback


def stored(folder) -> dict[str, bytes]:
    """Return all files that do not depend on when and how often a study was stopped."""
    root = Path(folder.where)
    kept = [p for p in root.rglob("*") if p.is_file() and not {"times", "times.json", "lock", "report"} & set(p.parts)]
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(kept)}


@pytest.fixture(scope="module")
def undisturbed(trained):
    """Return the outcome and the stored files of a study that was not interrupted."""
    outcome, root = trained
    return outcome, stored(StudyFolder(open_store(root), "small"))


@pytest.fixture
def finished(undisturbed, tmp_path):
    """Return a copy of the undisturbed study in the root that `study` uses."""
    name = Path(undisturbed[0].report["html"]).parents[1]
    shutil.copytree(name, tmp_path / "root" / name.name)
    return StudyFolder(open_store(tmp_path / "root"), name.name)


def test_study_ends_with_results_report_and_models(undisturbed):
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
    assert not any(name.startswith("packs/") for name in files)


@pytest.fixture
def killed_before(monkeypatch):
    """Return `killed_before(pattern)`, a context in which the write of a matching key raises `KeyboardInterrupt`."""
    write = LocalStore.write

    @contextmanager
    def killing(pattern):
        def write_or_die(store, key, data, **options):
            if fnmatch(key, pattern):
                raise KeyboardInterrupt
            write(store, key, data, **options)

        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "write", write_or_die)
            yield

    return killing


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("on_steps", 12),
        *(
            pytest.param(*at, marks=pytest.mark.nightly)
            for at in (("on_steps", 1), ("on_evaluate", 10), ("on_evaluate", 20))
        ),
    ],
)
def test_interrupted_study_ends_with_the_same_bytes(study, interrupting, killed_before, undisturbed, event, step):
    with pytest.raises(KeyboardInterrupt):
        study(callback=interrupting(event, step))
    # One run of the pack is done, the other one is evaluated.
    with killed_before("*/1-*/result.json"), pytest.raises(KeyboardInterrupt):
        study()
    _, folder = study()
    assert stored(folder) == undisturbed[1]


@pytest.mark.nightly
def test_study_killed_before_any_change_ends_with_the_same_bytes(study, monkeypatch):
    """One call dies before its first change of the store, another before its second, and so on."""
    text = TINY + "seeds: 2\narms: {no-ffn: {model.ffn: none}}\n"
    changes = {name: getattr(LocalStore, name) for name in ("write", "delete", "save_folder", "move")}
    _, whole = study(text, root="whole")
    for moment in range(1, 500):
        left, root = moment, f"cut-{moment}"
        with monkeypatch.context() as patched:
            for name, change in changes.items():

                def change_or_die(store, *args, change=change, **options):
                    nonlocal left
                    left -= 1
                    if left <= 0:
                        raise KeyboardInterrupt
                    return change(store, *args, **options)

                patched.setattr(LocalStore, name, change_or_die)
            with suppress(KeyboardInterrupt):
                study(text, root=root)
        _, folder = study(text, root=root)
        assert stored(folder) == stored(whole), moment
        shutil.rmtree(folder.store.root)
        if left > 0:
            break
    assert moment > 30


class TakenAway(Callback):
    """Sends SIGTERM to this process at a step, as a preempted machine does."""

    def __init__(self, step: int):
        self.step, self.resumes = step, []

    def on_resume(self, step):
        self.resumes.append(step)

    def on_steps(self, step, loss):
        if self.step and step >= self.step:
            self.step = 0
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_sigterm_after_the_last_step_ends_the_study_when_its_pack_is_done(study, undisturbed, tmp_path):
    class Late(Callback):
        def on_save(self, step):
            if step == 20:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        study(callback=Late())
    (name,) = {Path(key).name for key in os.listdir(tmp_path / "root")}
    folder = StudyFolder(open_store(tmp_path / "root"), name)
    assert {run.status() for run in folder.runs()} == {"done"}
    assert not (tmp_path / "root" / name / "results.json").exists()
    _, folder = study()
    assert stored(folder) == undisturbed[1]


@pytest.mark.slow
def test_sigterm_stores_a_checkpoint_and_resuming_gives_the_same_numbers(study, undisturbed):
    with pytest.raises(KeyboardInterrupt):
        study(callback=TakenAway(6))
    again = TakenAway(0)
    _, folder = study(callback=again)
    left = again.resumes[0]
    assert 6 <= left < 20  # the next checkpoint was due at 20
    assert left % 4 == 0  # the end of a window of log_every
    before, now = undisturbed[1], stored(folder)
    same = [name for name in before if not re.search("/metrics/", name)]  # the same points are in one more segment
    assert [now[name] for name in same] == [before[name] for name in same]
    whole = StudyFolder(open_store(Path(undisturbed[0].report["html"]).parents[2]), folder.name)
    for run, one in zip(whole.runs(), folder.runs(), strict=True):
        assert {name: list(zip(*s, strict=True)) for name, s in run.metrics().items()} == {
            name: list(zip(*s, strict=True)) for name, s in one.metrics().items()
        }


@pytest.mark.slow
def test_metrics_change_no_trained_model(study, text, undisturbed):
    """A separate program measures the metrics at their steps."""
    blind = text.replace(", metrics: {gradient-norm: {every: 6}}", "")
    assert blind != text
    _, folder = study(blind)
    seen, unseen = undisturbed[1], stored(folder)
    models = [name for name in seen if name.endswith("model.safetensors")]
    assert len(models) == 4
    assert [unseen[name] for name in models] == [seen[name] for name in models]
    whole = StudyFolder(open_store(Path(undisturbed[0].report["html"]).parents[2]), folder.name)
    for run in whole.runs():
        series = run.metrics()
        assert list(series["gradient-norm/all"].step) == [6, 12, 18]
        assert all(series["gradient-norm/all"].value > 0)


def test_finished_study_trains_nothing(study, interrupting, finished, undisturbed):
    callback = interrupting("never")
    _, folder = study(callback=callback)
    assert callback.trained == 0
    assert stored(folder) == undisturbed[1]


@pytest.mark.slow
def test_added_arms_and_seeds_leave_finished_runs_unchanged(study, text, finished):
    more = text.replace("seeds: 2", "seeds: 3") + "  high-lr: {train.optimizer.lr: 1e-2}\n"
    before = stored(finished)
    outcome, folder = study(more)
    after = stored(folder)
    assert {name: after[name] for name in before if name.startswith("runs/")} == {
        name: data for name, data in before.items() if name.startswith("runs/")
    }
    runs = {arm["name"]: len(arm["runs"]) for arm in outcome.results["arms"]}
    assert runs == {"baseline": 3, "low-lr": 3, "high-lr": 3}
    assert outcome.results["complete"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("batch_size: 4", "batch_size: 8", "base.train.batch_size was 4, and is 8 now"),
        ("lr: 1e-4", "lr: 1e-5", "arm 'low-lr' was"),
        ("seeds: 2", "seeds: 2\nmeasure: {primary: val/accuracy}", "differs from study 'small'"),
    ],
)
def test_another_study_of_the_same_name_is_refused(study, text, finished, undisturbed, old, new, says):
    with pytest.raises(UserError) as error:
        study(text.replace(old, new))
    assert says in str(error.value)
    assert stored(finished) == undisturbed[1]


@pytest.mark.slow
def test_diverged_run_is_an_outcome(study):
    outcome, _ = study(f"{TINY}seeds: 2\narms:\n  wild: {{train.optimizer.lr: 1e25}}\n")
    arm = outcome.results["arms"][1]
    assert outcome.failed == []
    assert [run["outcome"] for run in arm["runs"]] == ["diverged"] * 2
    assert arm["mean"] is None
    assert arm["verdict"] == "inconclusive"  # two of two lost is not yet proof
    assert outcome.results["arms"][0]["diverged"] == 0


@pytest.mark.slow
def test_failed_pack_does_not_stop_the_other_packs(study, monkeypatch):
    """The runs of one program fail, the other runs are trained, and a later call trains the failed runs."""
    from taetpu.train.step import train_step

    def breaks(state, rows, context):
        return train_step(state, rows, context) if context.config.model.layers[0].ffn.kind != "relu" else 1 / 0

    more = f"{TINY}seeds: 1\narms:\n  relu: {{model.ffn: relu}}\n"
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
def test_deleted_run_is_trained_again_to_the_same_bytes(study, finished, undisturbed):
    """Deleting the folder is the remedy for a damaged run."""
    gone = next(run for run in finished.runs() if (run.arm, run.seed) == ("low-lr", 1))
    shutil.rmtree(gone.where)
    _, folder = study()
    assert stored(folder) == undisturbed[1]


@pytest.mark.slow
def test_arm_that_is_removed_before_training_is_forgotten(study, interrupting):
    text = f"{TINY}seeds: 2\narms:\n  low-lr: {{train.optimizer.lr: 1e-4}}\n"
    extra = text + "  relu: {model.ffn: relu}\n"
    with pytest.raises(KeyboardInterrupt):
        study(extra, callback=interrupting("on_steps", 1))
    outcome, folder = study(text)
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline", "low-lr"]
    assert outcome.results["complete"]
    assert {run.arm for run in folder.runs() if run.status() == "done"} == {"baseline", "low-lr"}


@pytest.mark.nightly
def test_trained_arm_that_is_removed_stays_in_the_report(study, text, finished):
    outcome, _ = study(text.replace("low-lr", "lower-lr").replace("1e-4", "1e-5"))
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline", "low-lr", "lower-lr"]


@pytest.mark.slow
def test_arm_whose_data_changed_is_refused_before_training(study, tmp_path, interrupting):
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
