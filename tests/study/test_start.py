"""Runs that start from stored models: what is loaded, what the identity covers, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from taetpu.cli.main import app
from taetpu.contract.check import check_arms
from taetpu.core.errors import UserError
from taetpu.lens.opening import open_run
from taetpu.nn.named_arrays import named_parameters
from taetpu.spec.loading import load_study
from taetpu.train.step import new_model

pytestmark = pytest.mark.slow

BASE = """\
study: {name}
base:
  task: {{kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6, eval_size: 16}}
  model: {{dim: 16, num_layers: 1, mixer: {{kind: attention, num_heads: 2}}}}
  train: {{steps: 4, batch_size: 4, sample: none{start}}}
seeds: 2
arms: {arms}
"""
FIRST = BASE.format(name="first", start=", checkpoint: 2, keep_checkpoints: true", arms="{}")
FREEZE = "{freeze: {trained: [embedding.weight]}}"


def tuned(
    folder="root/first/runs/baseline/{seed}-*", arms="{scratch: {train.start: none}}", hooks=FREEZE, name="tuned"
):
    return BASE.format(name=name, start=f', start: "{folder}", hooks: {hooks}', arms=arms)


def models(folder, study="first", arm="baseline"):
    """Return the parameters of an arm's runs, by seed."""
    runs = sorted((folder / "root" / study / "runs" / arm).iterdir())
    return {run.name[0]: {n: np.asarray(a) for n, a in named_parameters(open_run(run).model).items()} for run in runs}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return a folder with a finished study, whose runs other studies start from. Tests copy it."""
    import taetpu

    folder = tmp_path_factory.mktemp("first")
    (folder / "first.yaml").write_text(FIRST)
    taetpu.run(folder / "first.yaml", root=str(folder / "root"))
    return folder


@pytest.fixture
def folder(first, tmp_path):
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.slow
def test_each_seed_starts_from_its_own_run(study, folder):
    """Frozen parameters are those of the first study; the arm from scratch has drawn others."""
    outcome, _ = study(tuned())
    assert not outcome.failed
    before, after, scratch = models(folder), models(folder, "tuned"), models(folder, "tuned", "scratch")
    assert set(before) == set(after) == {"0", "1"}
    for seed, values in before.items():
        for name, value in values.items():
            assert np.array_equal(after[seed][name], value) == (name != "embedding.weight")
        assert not np.array_equal(scratch[seed]["layers.0.mixer.wq"], values["layers.0.mixer.wq"])
    record = json.loads(next((folder / "root/tuned/runs/baseline").glob("1-*/config.json")).read_text())
    assert len(record["start"]) == 64


@pytest.mark.slow
def test_only_parameters_of_equal_name_and_shape_are_loaded(study, folder):
    """The ffn differs, so its weights are drawn with the values that they have without `start`."""
    study(tuned(arms="{gelu: {model.ffn: {kind: gelu-tanh, mult: 2.0}, model.bias: true}}"))
    found, first = models(folder, "tuned", "gelu")["0"], models(folder)["0"]
    np.testing.assert_array_equal(found["layers.0.mixer.wq"], first["layers.0.mixer.wq"])
    assert found["layers.0.ffn.up"].shape != first["layers.0.ffn.up"].shape


@pytest.mark.slow
def test_an_interrupted_run_continues_from_its_checkpoint(study, folder, interrupting):
    with pytest.raises(KeyboardInterrupt):
        study(tuned(hooks="{}"), callback=interrupting("on_evaluate", step=2))
    study(tuned(hooks="{}"))
    study(tuned(hooks="{}"), root="other")
    results = [json.loads((folder / root / "tuned/results.json").read_text()) for root in ("root", "other")]
    means = [[arm["mean"] for arm in found["arms"]] for found in results]
    assert means[0] == means[1]


def test_the_identity_covers_the_parameters_and_not_their_location(folder):
    def ids(text):
        (folder / "study.yaml").write_text(text)
        return [run.id for run in load_study(folder / "study.yaml").runs()]

    here = ids(tuned())
    shutil.copytree(folder / "root/first/runs/baseline", folder / "copy")
    assert ids(tuned("copy/{seed}-*")) == here
    assert not set(ids(tuned("root/first/runs/baseline/1-*", arms="{}"))[:1]) & set(here)
    assert len(set(here)) == 4


@pytest.mark.slow
def test_a_run_may_start_from_a_kept_checkpoint(study, folder):
    study(tuned("root/first/runs/baseline/{seed}-*/checkpoints/2", arms="{}"))
    checkpoint = next((folder / "root/first/runs/baseline").glob("0-*/checkpoints/2/model.safetensors"))
    found, stored = models(folder, "tuned")["0"], load_file(checkpoint)
    np.testing.assert_array_equal(found["layers.0.mixer.wq"], stored["layers.0.mixer.wq"])
    assert not np.array_equal(found["layers.0.mixer.wq"], models(folder)["0"]["layers.0.mixer.wq"])


def test_a_changed_start_is_no_unchanged_arm_and_declares_its_redrawn_parameters(folder):
    (folder / "study.yaml").write_text(tuned(arms="{other: {train.start: 'root/first/runs/baseline/1-*'}}"))
    check_arms(load_study(folder / "study.yaml"))
    (folder / "study.yaml").write_text(tuned(arms="{same: {train.start: 'root/first/runs/baseline/0-*'}}"))
    with pytest.raises(UserError, match="arm 'same' changes nothing"):
        check_arms(load_study(folder / "study.yaml"))


@pytest.mark.slow
def test_a_model_that_changed_after_the_first_run_is_refused(study, folder):
    study(tuned())
    file = next((folder / "root/first/runs/baseline").glob("0-*/model/model.safetensors"))
    other = next((folder / "root/first/runs/baseline").glob("1-*/model/model.safetensors"))
    file.write_bytes(other.read_bytes())
    assert load_file(file)
    with pytest.raises(UserError, match=r"arm 'baseline' starts from .*seed 0 has changed"):
        study(tuned())


@pytest.mark.parametrize(
    ("start", "problem", "remedy"),
    [
        ("root/nowhere/{seed}", "no model", "finished run"),
        ("root/first/runs/baseline/*", "2 folders match 'root/first/runs/baseline/*'", "matches one folder"),
        ("root/first/runs/baseline/x*", "no folder matches", "matches one folder"),
    ],
)
def test_a_missing_or_ambiguous_model_is_refused(study, folder, start, problem, remedy):
    with pytest.raises(UserError) as caught:
        study(tuned(start))
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert caught.value.path == ("base", "train", "start", "folder")
    assert caught.value.line == 5
    assert not (folder / "root/tuned").exists()


def other_task(folder, task, start="{folder: first/baseline/0}"):
    """Load a study on another task that starts from the first one, and return its stored parameters."""
    text = tuned(arms="{}", hooks="{}").replace(
        "kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6", task
    )
    text = text.replace('"root/first/runs/baseline/{seed}-*"', start)
    (folder / "study.yaml").write_text(text)
    study = load_study(folder / "study.yaml")
    return study.start(study.arms[0], 0)


def test_tokens_of_synthetic_tasks_are_compared_by_name(folder, monkeypatch):
    """Also with as many tokens as the model has (mqar), with more (mqar, histogram), or with other numbers (sort)."""
    monkeypatch.setenv("TAETPU_ROOT", str(folder / "root"))
    for task in ("kind: reverse, seq_len: 32, symbols: 6", "kind: copy, seq_len: 8, symbols: 6, max_length: 2"):
        assert not other_task(folder, task).drawn
    others = "mqar, symbols: 10, pairs: 2", "mqar, pairs: 2", "histogram, symbols: 6, max_length: 4", "sort, symbols: 7"
    for task in others:
        with pytest.raises(UserError, match=r"other tokens .*'a b c d \w \w <bos>") as caught:
            other_task(folder, f"kind: {task}, seq_len: 16")
        assert (caught.value.path, "vocabulary: drawn" in caught.value.remedy) == (("base", "train", "start"), True)
        drawn = other_task(folder, f"kind: {task}, seq_len: 16", "{folder: first/baseline/0, vocabulary: drawn}").drawn
        assert drawn == {"embedding.weight"}


def test_a_start_may_be_an_address(folder, monkeypatch):
    monkeypatch.setenv("TAETPU_ROOT", str(folder / "root"))
    task, files = "kind: copy, seq_len: 16, symbols: 6", folder / "root/first/runs/baseline"
    expected = next(files.glob("0-*/model/model.safetensors")).read_bytes()
    for address in ("first/baseline/{seed}", "first/baseline/0", "root/first/baseline/{seed}"):
        assert other_task(folder, task, f'"{address}"').model.data == expected
    with pytest.raises(UserError, match="matches 2 runs") as caught:
        other_task(folder, task, "first")
    assert caught.value.path == ("base", "train", "start", "folder")
    shutil.rmtree(next(files.glob("0-*")) / "model")
    with pytest.raises(UserError, match=f"stored in {next(files.glob('0-*'))}"):
        other_task(folder, task, "first/baseline/0")
    with pytest.raises(UserError, match="'kept'") as caught:
        other_task(folder, task, "{folder: first, vocabulary: kept}")
    assert "'loaded' or 'drawn'" in caught.value.remedy


def test_the_plan_says_once_what_arms_load(folder):
    (folder / "study.yaml").write_text(tuned(arms="{clipped: {train.clip: 0.5}}", hooks="{}"))
    shown = CliRunner().invoke(app, ["plan", str(folder / "study.yaml"), "--root", str(folder / "other")])
    assert shown.stdout.count("loaded from") == 1
    assert "baseline, clipped: 11 arrays loaded from" in shown.stdout


def test_a_model_without_a_common_parameter_and_a_damaged_model_are_refused(study, folder):
    text = tuned().replace("dim: 16", "dim: 24")
    with pytest.raises(UserError, match=r"no parameter .*name and shape"):
        study(text)
    file = next((folder / "root/first/runs/baseline").glob("0-*/model/model.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="model is damaged"):
        study(tuned())


# --- vocabularies ----------------------------------------------------------------------------------------------------

TEXT = """\
study: {name}
base:
  task: {{kind: text, source: {source}, seq_len: 16{task}}}
  model: {{dim: 16, num_layers: 1, mixer: {{kind: attention, num_heads: 2}}, embedding: untied}}
  train: {{steps: 2, batch_size: 4, sample: none{start}}}
seeds: 1
arms: {{}}
"""
VOCABULARY = {"embedding.weight", "embedding.unembed"}
WORDS = "abcd efgh ijkl mnop " * 60


def text_study(source="greek.txt", task="", name="second", vocabulary=None, folder="root/first/runs/baseline/{seed}-*"):
    more = "" if vocabulary is None else f", vocabulary: {vocabulary}"
    return TEXT.format(name=name, source=source, task=task, start=f', start: {{folder: "{folder}"{more}}}')


@pytest.fixture(scope="module")
def latin(tmp_path_factory):
    """Return a folder with a finished study on Latin letters, and a text with as many others. Tests copy it."""
    import taetpu

    folder = tmp_path_factory.mktemp("latin")
    (folder / "latin.txt").write_text(WORDS)
    (folder / "more.txt").write_text(WORDS[::-1])
    (folder / "greek.txt").write_text(WORDS.replace("a", "\u03b1"))
    (folder / "first.yaml").write_text(TEXT.format(name="first", source="latin.txt", task="", start=""))
    taetpu.run(folder / "first.yaml", root=str(folder / "root"))
    return folder


@pytest.fixture
def texts(latin, tmp_path):
    shutil.copytree(latin, tmp_path, dirs_exist_ok=True)
    return tmp_path


OTHER = [
    ({}, "token 1 is 'a', and 'b' in the task"),
    ({"task": ", tokenizer: {kind: bpe, vocab_size: 300}"}, "18 tokens, and the task has"),
    ({"task": ", tokenizer: {kind: char, unseen: error}", "source": "latin.txt"}, "18 tokens, and the task has 17"),
]


@pytest.mark.parametrize(("changes", "problem"), OTHER)
def test_another_tokenizer_is_refused(study, texts, changes, problem):
    with pytest.raises(UserError) as caught:
        study(text_study(**changes))
    assert problem in caught.value.problem
    assert "vocabulary: drawn" in caught.value.remedy
    assert (caught.value.path, caught.value.line) == (("base", "train", "start"), 5)
    assert not (texts / "root/second").exists()


def test_a_model_without_a_tokenizer_is_refused_for_text(study, texts, folder):
    synthetic = next((folder / "root/first/runs/baseline").glob("0-*"))
    next((synthetic / "model").glob("tokenizer.json"), synthetic / "none").unlink(missing_ok=True)
    with pytest.raises(UserError, match="model has none"):
        study(text_study(folder=str(synthetic)))


@pytest.mark.slow
def test_the_vocabulary_is_drawn_on_request(study, texts):
    """Its parameters are those of a run from scratch; the others are those of the stored model."""
    text = text_study(vocabulary="drawn").replace("start:", "hooks: {freeze: {trained: [layers.0.ffn.up]}}, start:")
    study(text)
    found, before = models(texts, "second")["0"], models(texts)["0"]
    loaded = load_study(texts / "study.yaml")
    config = loaded.arms[0].config
    drawn = named_parameters(new_model(config, loaded.source(loaded.arms[0]), 0))
    assert found.keys() == before.keys()
    for name in found.keys() - VOCABULARY - {"layers.0.ffn.up"}:
        np.testing.assert_array_equal(found[name], before[name])
    for name in VOCABULARY:
        np.testing.assert_allclose(found[name], drawn[name], rtol=1e-6)
    shown = CliRunner().invoke(app, ["plan", str(texts / "study.yaml"), "--json", "--root", str(texts / "other")])
    (start,) = (arm["start"] for arm in json.loads(shown.stdout)["arms"])
    assert set(start["vocabulary"]) == VOCABULARY
    assert (start["drawn"], start["unused"]) == ([], [])
    assert start["loaded"] == len(found) - len(VOCABULARY)


def test_a_drawn_vocabulary_changes_the_identity(texts):
    def start(vocabulary):
        (texts / "study.yaml").write_text(text_study(source="latin.txt", vocabulary=vocabulary))
        (run,) = load_study(texts / "study.yaml").runs()
        return run.id, run.start

    assert start(None) == start("loaded")
    assert len(start("loaded")[1]) == 64
    assert start("drawn") != start("loaded")
