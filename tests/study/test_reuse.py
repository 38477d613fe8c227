"""Equal runs of other studies are reused and verified, and dropped if their results cannot be reproduced."""

import json
import shutil
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forged import forged
from tests.small import STUDY

from taetpu.core.errors import UserError
from taetpu.spec.resolved_study import RunSpec
from taetpu.stats.verify import verify
from taetpu.store.backend import LocalStore, open_store
from taetpu.store.digests import seal
from taetpu.store.study import StudyFolder
from taetpu.study.reuse import sample_runs
from taetpu.study.run_file import run
from taetpu.train.callbacks import Callback

# A study without samples and metrics compiles fewer programs.
TEXT = f"{STUDY.partition(', sample:')[0]}, sample: none}}\nseeds{STUDY.partition('seeds')[2]}"


class Trained(Callback):
    """Records the runs that are trained."""

    def __init__(self):
        self.runs = []

    def on_pack_begin(self, number, total, runs):
        self.runs += [(run.arm, run.seed) for run in runs]


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """Return a root with a trained study."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "study.yaml").write_text(TEXT)
    run(folder / "study.yaml", root=str(folder / "root"))
    return folder / "root"


@pytest.fixture
def begin(tmp_path, first):
    """Return `begin(text, reuse, audit=0.0)`, which runs a study in another root.

    It returns the outcome, the trained runs and the study's folder.
    """

    def begun(text=TEXT, reuse=(first,), audit=0.0):
        (tmp_path / "study.yaml").write_text(text)
        callback, root = Trained(), tmp_path / "root"
        outcome = run(
            tmp_path / "study.yaml",
            root=str(root),
            reuse=[str(place) for place in reuse],
            audit=audit,
            callback=callback,
        )
        return outcome, callback.runs, StudyFolder(open_store(root), outcome.results["study"])

    return begun


@pytest.fixture
def copied(tmp_path, first) -> Path:
    """Return a copy of the first root, which tests may change."""
    shutil.copytree(first, tmp_path / "copied")
    return tmp_path / "copied"


def values(outcome) -> dict:
    return {(arm["name"], run["seed"]): run["value"] for arm in outcome.results["arms"] for run in arm["runs"]}


def test_equal_runs_are_copied_completely_and_not_trained(begin, first):
    outcome, trained, folder = begin()
    assert trained == []
    theirs = json.loads((first / "small/results.json").read_text())
    assert {**theirs, "reused": {"runs": 4, "audited": 0}} == outcome.results
    assert (theirs["reused"], outcome.refuted) == ({"runs": 0, "audited": 0}, [])
    for ours in folder.runs():
        other = StudyFolder(open_store(first), "small").run(ours.arm, ours.seed, ours.id)
        assert ours.origin() == other.where
        there = {file.relative_to(other.where): file.read_bytes() for file in Path(other.where).rglob("*.*")}
        here = {file.relative_to(ours.where): file.read_bytes() for file in Path(ours.where).rglob("*.*")}
        assert {name: data for name, data in here.items() if name.name != "reused.json"} == there
    assert begin(reuse=())[1] == []


@pytest.mark.slow
def test_a_copy_that_was_killed_is_copied_again(begin, monkeypatch):
    """Copying stops before each file of the first run in turn; the same command then copies the run whole."""
    write, stopped = LocalStore.write, []

    class Killed(BaseException):
        pass

    while "result.json" not in stopped:
        writes = count()

        def write_or_stop(store, key, data, writes=writes, **how):
            if "/runs/" in key and next(writes) == len(stopped):
                stopped.append(Path(key).name)
                raise Killed
            write(store, key, data, **how)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "write", write_or_stop)
            with pytest.raises(Killed):
                begin()
    assert {"config.json", "evaluation.json", "model.safetensors"} <= {*stopped}
    outcome, trained, folder = begin()
    assert (trained, outcome.results["reused"]["runs"]) == ([], 4)
    assert not any(run.is_partial_copy() for run in folder.runs())


@pytest.mark.slow
def test_only_equal_runs_are_reused_whatever_their_names(begin):
    text = TEXT.replace("study: small", "study: other").replace("low-lr: {train.optimizer.lr: 1e-4}",
        "slow: {train.optimizer.lr: 1e-4}\n  slower: {train.optimizer.lr: 1e-5}")  # fmt: skip
    outcome, trained, folder = begin(text)
    assert sorted(trained) == [("slower", 0), ("slower", 1)]
    assert outcome.results["reused"]["runs"] == 4
    assert {run.arm for run in folder.runs() if run.origin()} == {"baseline", "slow"}


@pytest.mark.slow
def test_sample_of_reused_runs_is_trained_again_once(begin):
    outcome, trained, folder = begin(audit=0.5)
    assert len(trained) == 2
    assert (outcome.refuted, outcome.results["reused"]) == ([], {"runs": 4, "audited": 2})
    assert sorted(folder.read_audit()["proved"]) == [list(run) for run in sorted(trained)]
    assert not (Path(folder.where) / "audit").exists()
    assert begin(audit=0.5)[1] == []
    assert all(run.origin() for run in folder.runs())


@pytest.mark.slow
def test_reused_runs_are_dropped_if_a_replica_disagrees(begin, copied):
    honest = values(begin()[0])
    shutil.rmtree(begin()[2].where)
    for other in StudyFolder(open_store(copied), "small").runs():
        forged(other)
    outcome, trained, folder = begin(reuse=[copied], audit=0.25)
    ((arm, seed),) = trained
    (wrong,) = outcome.refuted
    there, here = (f"{value:.6g}" for value in (honest[arm, seed] - 0.01, honest[arm, seed]))
    assert wrong == f"{arm} on seed {seed} has val/loss {there} there, and {here} here"
    assert [(run.arm, run.seed, run.origin()) for run in folder.runs()] == [(arm, seed, None)]
    assert (outcome.results["complete"], outcome.results["reused"]["runs"]) == (False, 0)
    outcome, trained, _ = begin(reuse=())
    assert len(trained) == 3
    assert outcome.results["complete"]
    assert values(outcome) == pytest.approx(honest, abs=1e-5)


def test_result_that_contradicts_its_metrics_is_not_reused(begin, copied):
    file = next(copied.glob("small/runs/low-lr/0-*/result.json"))
    result = json.loads(file.read_text())
    result["metrics"]["val/loss"] = 0.5
    del result["digest"]
    file.write_bytes(seal(result))
    with pytest.raises(UserError, match=r"val/loss is 0\.5 in the result, but ") as error:
        begin(reuse=[copied])
    assert error.value.file == str(file.parent)


def test_run_that_does_not_match_its_id_is_refused(begin, copied):
    file = next(copied.glob("small/runs/low-lr/0-*/config.json"))
    config = json.loads(file.read_text())
    config["config"]["train"]["optimizer"]["lr"] = 0.5
    del config["digest"]
    file.write_bytes(seal(config))
    with pytest.raises(UserError) as error:
        begin(reuse=[copied])
    assert f"match its ID {config['id'][:8]}" in str(error.value)
    assert str(file.parent) in str(error.value)
    assert "omit --reuse" in str(error.value)


def test_root_without_studies_is_refused(begin, tmp_path):
    with pytest.raises(UserError) as error:
        begin(reuse=[tmp_path / "nowhere"])
    assert "no study" in str(error.value)
    assert not list((tmp_path / "root").rglob("*"))  # nothing is stored of a study that is refused


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 50)), st.floats(0, 1))
def test_sample_has_the_requested_size_and_is_reproducible(ids, share):
    runs = [RunSpec("arm", number, None, f"{number:08x}") for number in sorted(ids)]  # pyright: ignore[reportArgumentType]
    found = sample_runs(runs, share)
    assert found == sample_runs([*reversed(runs), *runs], share)
    assert len({run.id for run in found}) == len(found)
    assert share * len(runs) <= len(found) <= share * len(runs) + 1


def of_fewer_fields(root: Path) -> None:
    """Remove fields at their defaults from a study, as if an earlier version had written it."""
    study = StudyFolder(open_store(root), "small")
    frozen = study.read_study()
    for section, field in (("train", "accumulate"), ("model", "after"), ("train", "log_every")):
        del frozen["base"][section][field]
    del frozen["measure"]["looks"]
    study.write_study(frozen, replace=True)
    for made in study.runs():
        record = made.config()
        for path in ("train.accumulate", "train.log_every", "model.layers.0.after"):
            record["defaults"].pop(path, None)
            *above, field = path.split(".")
            node = record["config"]
            for part in above:
                node = node[int(part) if part.isdecimal() else part]
            del node[field]
        made.store.write(f"{made.key}/config.json", seal(record), replace=True)


@pytest.mark.slow
def test_study_of_a_version_with_fewer_fields_is_resumed_and_verified(begin, first, tmp_path):
    """The versions differ only in fields at their defaults, which are not part of an ID."""
    text = TEXT.replace(", log_every: 4", "")
    (tmp_path / "study.yaml").write_text(text)
    shutil.copytree(first, tmp_path / "root")
    of_fewer_fields(tmp_path / "root")
    outcome, trained, folder = begin(text, reuse=())
    assert (trained, outcome.results["complete"]) == ([], True)
    begun = next(made for made in folder.runs() if (made.arm, made.seed) == ("low-lr", 1))
    for name in ("result.json", "metrics", "evaluation.json", "model"):  # begun by that version, and not done
        begun.store.delete(f"{begun.key}/{name}")
    outcome, trained, folder = begin(text, reuse=())
    assert ("low-lr", 1) in trained
    assert outcome.results["complete"]
    assert verify(folder) == []


@pytest.mark.slow
def test_runs_of_a_version_with_fewer_fields_are_reused(begin, copied):
    of_fewer_fields(copied)
    outcome, trained, folder = begin(reuse=[copied])
    assert (trained, outcome.results["reused"]["runs"]) == ([], 4)
    assert verify(folder) == []


@pytest.mark.slow
def test_runs_with_another_evaluation_interval_are_reused(begin):
    _, trained, _ = begin(TEXT.replace("eval_every: 10", "eval_every: 5"))
    assert trained == []
