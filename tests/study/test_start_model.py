"""A baseline that is a stored model: `model: {start: FOLDER}`."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from tests.interop.cases import theirs
from tests.tokenizer_files import train_bpe
from typer.testing import CliRunner

from taetpu.cli.main import app
from taetpu.cli.on_tpu import check_paths
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.interop.huggingface import import_config
from taetpu.lens.conversion import Converter, rename_or_remove
from taetpu.nn.lm import ModelConfig
from taetpu.spec import loading
from taetpu.spec.start_settings import model_settings
from taetpu.study.loading import load_study

TEXT = "To be, or not to be: that is the question.\n" * 40
ROWS, POSITIONS = 310, 24
STUDY = """\
study: fine
base:
  task: {task}
  model: {model}
  train: {train}
seeds: {seeds}
arms: {arms}
"""
TASK = "{kind: text, source: a.txt, seq_len: 12}"
TRAIN = "{steps: 2, batch_size: 4, sample: none}"
LORA = '{model.adapter: {kind: lora, rank: 4}, train.hooks: {freeze: {trained: ["*.adapter.*"]}}}'


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a text, and with a GPT-2 of transformers that has a tokenizer."""
    folder = tmp_path_factory.mktemp("written")
    sizes = {"vocab_size": ROWS, "n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, **ends)).save_pretrained(folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text(train_bpe(TEXT).to_str())
    (folder / "a.txt").write_text(TEXT)
    return folder


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def load(folder):
    """Return a function that loads a study in the folder."""

    def loaded(model="{start: hf}", task=TASK, train=TRAIN, arms="{}", seeds=2):
        file = folder / "study.yaml"
        file.write_text(STUDY.format(model=model, task=task, train=train, arms=arms, seeds=seeds))
        return load_study(file)

    return loaded


def ids(study):
    return [run.id for run in study.runs()]


def test_identities_are_those_of_the_study_that_is_written_out(load, folder, capsys):
    arms = "{{lora: {lora}, scratch: {{train.start: none{more}}}, rope: {{model.position: rope}}}}"
    short = load(arms=arms.format(lora=LORA, more=""))
    assert "hf (GPT-2)" in capsys.readouterr().err
    app(["model", "import", str(folder / "hf"), "-o", str(folder / "gpt2")], standalone_mode=False)
    model = (
        "{dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}, position: learned, norm: layer, bias: true"
    )
    model += ", ffn: {kind: gelu-tanh, hidden: 64}, init: gpt2-scaled}"
    more = ", task.tokenizer: {kind: start, folder: gpt2}"
    task, train = TASK[:-1] + ", tokenizer: {kind: start}}", TRAIN[:-1] + ", start: gpt2}"
    whole = load(model, task, train, arms.format(lora=LORA, more=more))
    assert ids(short) == ids(whole)
    assert len({*ids(short)}) == 8
    assert "start" not in short.base["model"]


def test_the_place_of_the_model_is_no_part_of_identities(load, folder):
    here = ids(load())
    (folder / "hf").rename(folder / "other")
    assert ids(load("{start: other}")) == here
    assert ids(load(f"{{start: {folder / 'other'}}}")) == here
    app(["model", "import", str(folder / "other"), "-o", str(folder / "gpt2")], standalone_mode=False)
    assert ids(load("{start: gpt2}")) == here


@pytest.mark.parametrize("case", ["gpt2", "neox", "gemma2", "gemma3", "gpt-oss", "qwen3"])
def test_settings_of_families_are_expanded_without_loss(case):
    config = import_config(theirs(case).config.to_dict()).resolve()
    assert load_config(ModelConfig, model_settings(config)).resolve() == config


def test_settings_of_single_layers_are_expanded_without_loss():
    settings = {"dim": 16, "num_layers": 5, "mixer": {"kind": "attention", "num_heads": 2}, "norm": "layer",
                "layers": {0: {"norm": "rms"}, "1:3": {"ffn": "relu", "drop": ["ffn"]}, 4: {"same_as": 0}}}  # fmt: skip
    config = load_config(ModelConfig, settings).resolve()
    short = model_settings(config)
    assert load_config(ModelConfig, short).resolve() == config
    assert short["layers"][0] == {"norm": "rms"}
    assert "position" not in short


def test_the_first_positions_and_all_tokens_are_loaded(load, folder):
    study = load()
    stored = load_file(folder / "hf" / "model.safetensors")
    start = study.start(study.arms[0], 0)
    loaded = start.fitting({"position.weight": (12, 16), "embedding.weight": (ROWS, 16)})
    np.testing.assert_array_equal(loaded["position.weight"], stored["transformer.wpe.weight"][:12])
    np.testing.assert_array_equal(loaded["embedding.weight"], stored["transformer.wte.weight"])


def test_settings_beside_start_change_the_loaded_model(load):
    arm = load("{start: hf, mixer: {num_heads: 4}, dropout: 0.1, layers: {1: {drop: [layer]}}}").arms[0]
    assert [layer.mixer.num_heads for layer in arm.config.model.layers] == [4, 4]
    assert [layer.drop for layer in arm.config.model.layers] == [(), ("layer",)]
    assert arm.config.model.dropout == 0.1
    assert arm.config.train.start.folder == "hf"


@pytest.mark.slow
def test_the_plan_says_what_is_loaded_and_drawn(load, folder):
    load(arms=f"{{lora: {LORA}, scratch: {{train.start: none}}, untied: {{model.embedding: untied}}}}")
    shown = CliRunner().invoke(app, ["plan", str(folder / "study.yaml"), "--json", "--root", str(folder / "root")])
    planned = json.loads(shown.stdout)
    starts = {arm["name"]: arm["start"] for arm in planned["arms"]}
    assert planned["start"]["name"] == "hf"
    assert starts["scratch"] is None
    assert starts["baseline"]["cut"] == ["position.weight"]
    assert starts["baseline"]["drawn"] == starts["baseline"]["unused"] == []
    assert starts["lora"]["loaded"] == starts["baseline"]["loaded"]
    assert {name.split(".")[2] for name in starts["lora"]["drawn"]} == {"adapter"}
    assert starts["untied"]["drawn"] == ["embedding.unembed"]
    text = CliRunner().invoke(app, ["plan", str(folder / "study.yaml"), "--root", str(folder / "root")]).stdout
    assert "scratch: all parameters drawn" in " ".join(text.split())
    assert "start hf: dim 16, num_layers 2" in text


def test_each_seed_may_start_from_its_own_model_with_one_tokenizer(load, folder):
    for seed in range(2):
        app(["model", "import", str(folder / "hf"), "-o", str(folder / f"model-{seed}")], standalone_mode=False)
    study = load('{start: "model-{seed}"}')
    assert study.source(study.arms[0]).vocab_size == ROWS
    assert len({*ids(study)}) == 2
    (folder / "model-1" / "tokenizer.json").write_text(train_bpe(TEXT[::-1]).to_str())
    with pytest.raises(UserError, match="tokenizer") as caught:
        load('{start: "model-{seed}"}').runs()
    assert caught.value.path == ("base", "train", "start")


def test_a_conversion_is_reused_until_the_files_change(load, folder, capsys):
    first = ids(load())
    assert str(folder / "cache") in capsys.readouterr().err
    assert ids(load()) == first
    assert capsys.readouterr().err == ""
    config = json.loads((folder / "hf" / "config.json").read_text())
    (folder / "hf" / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-6}))
    assert ids(load()) != first
    assert str(folder / "cache") in capsys.readouterr().err


MISTAKES = {
    "absent": ("{start: nowhere}", TASK, TRAIN, "nowhere", ("model", "start", "folder"), "finished run"),
    "looks like a name": ("{start: their/model}", TASK, TRAIN, "their/model", ("model", "start", "folder"),
                          "{folder: their/model, revision: main}"),
    "no model": ("{start: empty}", TASK, TRAIN, "empty", ("model", "start", "folder"), "finished run"),
    "unread family": ("{start: strange}", TASK, TRAIN, "mamba9", ("model", "start", "folder"), "gpt2"),
    "preset": ("{start: hf, preset: gpt2}", TASK, TRAIN, "gpt2", ("model", "start"), "preset or start"),
    "two starts": ("{start: hf}", TASK, "{steps: 1, start: other}", "'other'", ("train", "start"), "train.start"),
    "positions": ("{start: hf}", TASK.replace("12", "25"), TRAIN, "25 tokens exceed the 24 ",
                  ("task", "seq_len"), "at most 24"),
    "tokenizer": ("{start: hf}", TASK[:-1] + ", tokenizer: {kind: byte}}", TRAIN, "256", ("train", "start"), "drawn"),
    "size": ("{start: hf, num_layers: two}", TASK, TRAIN, "two", ("model", "num_layers"), "number"),
    "field": ("{start: {folder: hf, revisions: a}}", TASK, TRAIN, "revisions", ("model", "start", "revisions"),
              "revision"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(load, folder, mistake):
    model, task, train, value, path, remedy = MISTAKES[mistake]
    (folder / "empty").mkdir()
    (folder / "strange").mkdir()
    (folder / "strange" / "config.json").write_text('{"model_type": "mamba9"}')
    with pytest.raises(UserError) as caught:
        load(model, task, train).runs()
    assert value in caught.value.problem
    assert caught.value.path == ("base", *path)
    assert caught.value.line is not None
    assert remedy in caught.value.remedy


def test_a_damaged_model_is_refused_with_its_file(load, folder):
    weights = folder / "hf" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(UserError, match=str(weights)) as caught:
        load()
    assert caught.value.path == ("base", "model", "start", "folder")
    assert not [*(folder / "cache").rglob("model.safetensors")]


@pytest.mark.parametrize("page", ["docs/tour.md", "docs/huggingface.md"])
def test_the_example_of_a_page_is_loaded(folder, page):
    text = (Path(__file__).parents[2] / page).read_text()
    (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "model: {start: " in block]
    for name in ("gpt2", "path/to/folder"):
        shutil.copytree(folder / "hf", folder / name)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"body": f"{TEXT[:40]} {i}"}) + "\n" for i in range(40)))
    (folder / "study.yaml").write_text(example if "study: " in example else f"study: fine\n{example}")
    study = load_study(folder / "study.yaml", ["task.seq_len=12"])
    assert len({*ids(study)}) == 6
    assert [arm.name for arm in study.arms] == ["baseline", "lora"]
    assert study.start(study.arms[1], 0).name in ("gpt2", "path/to/folder")


def test_spec_alone_converts_nothing(load, folder):
    load()
    with pytest.raises(UserError) as caught:
        loading.load_study(folder / "study.yaml")
    assert "taetpu model import" in caught.value.remedy


def test_the_first_of_two_processes_that_convert_at_once_wins(folder):
    first = Converter()(str(folder / "hf"), None)
    shutil.copytree(first, second := first.with_name(".unfinished-2"))
    rename_or_remove(second, first)
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert (first / "model.safetensors").is_file()


def test_a_model_on_this_machine_is_refused_for_other_machines(load):
    study = load()
    with pytest.raises(UserError, match="'hf'") as caught:
        check_paths(study)
    assert "gs://" in caught.value.remedy
    assert caught.value.path[0] == "base"
    with pytest.raises(UserError, match="'hf'"):
        check_paths(load(train="{steps: 2, batch_size: 4, sample: none, start: none}"))
