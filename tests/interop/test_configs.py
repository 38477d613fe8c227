"""Configs of lm-springboard, nanoGPT and nanochat become study files that load, and train."""

import ast
import json
from pathlib import Path

import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.interop.configs import lm_springboard, nanochat, nanogpt
from taetpu.interop.configs.config_file import ConfigFile, parse_constant
from taetpu.interop.configs.study import SYSTEMS, at, changes, find_configs, translate_config
from taetpu.spec.loading import load_study

CONFIGS = Path(__file__).parent / "configs"
FILES = sorted(CONFIGS.glob("*.txt"))
STUDIES = {
    "copy-grid": ["copy-grid"],
    "family-addition": ["family-addition"],
    "family-histogram": ["family-histogram"],
    "lines": ["lines"],
    "stories": ["stories"],
    "tasks": ["tasks-sort", "tasks-maskedcopy", "tasks-numbersort"],
}


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.fixture
def poems(tmp_path):
    """A folder with texts beside the study files."""
    (tmp_path / "poems").mkdir()
    for name in "ab":
        lines = (f"{name} line {number} of a poem, which is about {number % 7} things\n" for number in range(200))
        (tmp_path / f"poems/{name}.txt").write_text("".join(lines))
    return tmp_path


def assert_trains(folder: Path, study, more=None) -> None:
    """Train one seed of a translated study for 20 steps on the texts in `folder`."""
    path = write(folder, f"{study.name}.yaml", study.text.replace("seeds: 3", "seeds: 1").partition("trackers:")[0])
    overrides = {"task.source": "poems", "train.steps": 20, "train.eval_every": 10, **(more or {})}
    outcome = taetpu.run(path, overrides, root=str(folder / "runs"))
    assert not outcome.failed
    assert {run["outcome"] for arm in outcome.results["arms"] for run in arm["runs"]} == {"finished"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_become_studies_that_load(poems, file):
    translated = translate_config(file)
    assert [study.name for study in translated] == STUDIES[file.stem]
    for study in translated:
        loaded = load_study(write(poems, f"{study.name}.yaml", study.text))
        assert loaded.runs()
        assert loaded.name == study.name


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_train(poems, file):
    for study in translate_config(file):
        path = write(poems, f"{study.name}.yaml", study.text.replace("seeds: 3", "seeds: 1"))
        more = {"task.eval_size": 8, "train.eval_every": 10}
        if "epochs" in study.data["base"]["train"]:
            more |= {"train.epochs": None, "train.steps": 20}
        if "poems" in study.text:
            more.pop("task.eval_size")
        if "plateau" in study.text:
            more |= {"train.schedule.every": 4, "train.schedule.windows": 8}
        outcome = taetpu.run(path, more, root=str(poems / "runs"))
        assert not outcome.failed
        assert {run["outcome"] for arm in outcome.results["arms"] for run in arm["runs"]} == {"finished"}


def test_lists_become_a_grid():
    (study,) = translate_config(CONFIGS / "copy-grid.txt")
    assert study.data["grid"] == {"train.optimizer.lr": [1e-3, 3e-3], "model.dim": [16, 32]}
    assert len(load_study(study.data).arms) == 4


def test_a_list_that_changes_several_settings_becomes_arms():
    """Twice the accumulated batches are twice the batch, too. Seeds are no setting of arms."""
    (study,) = translate_config(CONFIGS / "family-addition.txt")
    (arm,) = study.data["arms"].values()
    assert {path: arm[path] for path in ("train.batch_size", "train.accumulate", "train.steps")} == {
        "train.batch_size": 8, "train.accumulate": 2, "train.steps": 20,
    }  # fmt: skip
    assert study.data["seeds"] == [0, 1]
    assert study.data["base"]["train"]["steps"] == 40


def test_each_list_alone_and_all_combinations_are_those_of_single_configs(tmp_path):
    """An arm is the baseline of the config that has its values."""
    text = "TrainParams\nlr = {lr}\nlr_scheduler_type = {kind}\nModelParams\nn_heads = {heads}\n"
    lists = {"lr": [1e-3, 1e-8], "kind": ["Cosine", "Linear"], "heads": [4, 8]}
    (study,) = translate_config(write(tmp_path, "all.txt", text.format(**lists)))
    arms = {arm.name: arm.config for arm in load_study(study.data).arms}
    assert len(arms) == 8
    for lr in lists["lr"]:
        for kind in lists["kind"]:
            for heads in lists["heads"]:
                (alone,) = translate_config(
                    write(tmp_path, "one.txt", text.format(lr=lr, kind=repr(kind), heads=heads))
                )
                (baseline,) = load_study(alone.data).arms
                assert baseline.config in arms.values()


def test_a_list_that_adds_and_removes_settings_loads(tmp_path):
    """LoRA adds an adapter, an early end replaces epochs, and tied embeddings have no second table."""
    for key, values in (("lora_rank", [0, 4]), ("early_stop_nsamples", [-1, 4000]), ("weight_decay", [0.1, 0])):
        text = f"TrainParams\n{key} = {values}\nModelParams\ntie_embed_deembed = [False, True]\n"
        (study,) = translate_config(write(tmp_path, "one.txt", text))
        assert len(load_study(study.data).arms) == 4


def test_data_settings_become_studies():
    """Losses on different tasks are not compared."""
    studies = translate_config(CONFIGS / "tasks.txt")
    assert [study.data["base"]["task"]["kind"] for study in studies] == ["sort", "masked-copy", "number-sort"]
    assert {tuple(study.data["grid"]["model.num_layers"]) for study in studies} == {(1, 2)}


def test_a_family_is_found_by_its_prefix(tmp_path):
    for name in ("small.txt", "small-2.txt", "small-10.txt", "smaller.txt"):
        write(tmp_path, name, "ModelParams\n")
    assert [file.name for file in find_configs(str(tmp_path / "small"))] == ["small-10.txt", "small-2.txt", "small.txt"]
    with pytest.raises(UserError) as caught:
        find_configs(str(tmp_path / "tiny"))
    assert caught.value.file == tmp_path / "tiny"


def test_what_has_no_counterpart_is_listed_with_its_line():
    (study,) = translate_config(CONFIGS / "stories.txt")
    notes = {note.setting.split(" = ")[0]: note.line for note in study.notes}
    assert notes == {
        "EvalParams.no_wandb": 9, "ModelParams.layer_architecture": 26, "ModelParams.inject_relu": 27,
        "DataParams.dataset_name": 2,
    }  # fmt: skip
    assert all(note.setting in study.text and note.reason for note in study.notes)


def test_settings_of_evaluation_are_read_from_older_configs():
    """They were in TrainParams before EvalParams was."""
    (study,) = translate_config(CONFIGS / "stories.txt")
    assert study.data["base"]["train"]["sample"] == {"tokens": 5, "temperature": 0.5}


@pytest.mark.parametrize(("key", "values"), [
    ("lr_scheduler_type", ["Cosine", "Cyclic", "Plateau", "Linear"]),
    ("dataset_name", [*lm_springboard.TASKS, "ptb", "wikitext", "dummy", "mine", "c4-en", "wiki40b", "fineweb-ml"]),
    ("tokenizer_source_name", ["char", "custom", "gpt2", "bert-base-uncased", "xlm-roberta-large"]),
    ("layer_architecture", ["torch-transformer", "custom-transformer"]),
    ("pos_encoding", ["learned", "sin", "none"]),
    ("lora_rank", [0, 4]), ("checkpoint_every", [0, -1, 500]), ("val_check_epoch_frac", [0.5, 20]),
    ("early_stop_nsamples", [-1, 4000]), ("norm_first", [True, False]), ("tie_embed_deembed", [True, False]),
    ("weight_decay", [0, 0.1]), ("extra_tracking", [True, False]),
])  # fmt: skip
def test_every_choice_of_lm_springboard_loads(tmp_path, key, values):
    section = next(section for section, settings in lm_springboard.DEFAULTS.items() if key in settings)
    for value in values:
        text = f"{section}\n{key} = {value!r}\n" + (
            "" if key == "dataset_name" else "DataParams\ndataset_name='mine'\n"
        )
        (study,) = translate_config(write(tmp_path, "one.txt", text))
        assert load_study(study.data).arms


def test_the_defaults_give_the_model_and_optimizer_of_lm_springboard():
    """From its README and params: post-norm, learned positions, ReLU of twice the width, untied with a bias."""
    study = translate_config(CONFIGS / "tasks.txt")[0]
    base = study.data["base"]
    assert base["model"]["norm"] == {"kind": "layer", "placement": "post", "eps": 1e-5}
    assert base["model"]["ffn"] == {"kind": "relu", "mult": 2}
    assert base["model"]["embedding"] == {"kind": "untied", "bias": True}
    assert (base["model"]["dropout"], base["train"]["clip"]) == (0.1, 0.5)
    assert base["task"]["examples"] == 340  # 85 % of 400


# --- nanoGPT ---------------------------------------------------------------------------------------------------------

NANOGPT = '''\
"""A config with what configs contain."""
import time

out_dir = 'out-small'
wandb_run_name = 'run-' + str(time.time())
dataset = 'shakespeare_char'
gradient_accumulation_steps = 2 * 3
batch_size = 4
block_size = 32
n_layer, n_head = 2, 2
n_layer = 2
n_head = 2
n_embd = 16
dropout = 0.2
learning_rate = 1e-3
max_iters = 50
lr_decay_iters = max_iters
min_lr = learning_rate / 10
warmup_iters = 5
grad_clip = 0.0
open('executed', 'w')
print('executed')
'''


def test_a_config_of_nanogpt_is_parsed_and_not_executed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (study,) = translate_config(write(tmp_path, "small.py", NANOGPT))
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "executed").exists()
    base, train = study.data["base"], study.data["base"]["train"]
    assert (train["batch_size"], train["accumulate"], train["clip"]) == (24, 6, "none")
    assert train["schedule"] == {"kind": "cosine", "warmup": 5, "min_lr": 1e-4}
    assert base["model"]["ffn"] == {"kind": "gelu-erf", "mult": 4}
    assert base["task"]["source"] == "tinyshakespeare"
    assert {5, 10, 21, 22} <= {note.line for note in study.notes}
    assert load_study(study.data).arms


@pytest.mark.slow
def test_a_config_of_nanogpt_trains(poems):
    """For 20 steps, on a text that is here: its own is a download."""
    (study,) = translate_config(write(poems, "small.py", NANOGPT))
    assert_trains(poems, study)


@pytest.mark.parametrize("text", [
    "dataset = 'mine'", "init_from = 'resume'", "decay_lr = False", "dtype = 'float16'", "wandb_log = True",
    "bias = True", "dataset = 'openwebtext'",
])  # fmt: skip
def test_every_choice_of_nanogpt_loads(tmp_path, text):
    (study,) = translate_config(write(tmp_path, "one.py", text))
    assert load_study(study.data).arms


def test_a_pretrained_model_of_nanogpt_is_named(tmp_path):
    (study,) = translate_config(write(tmp_path, "tune.py", "init_from = 'gpt2-medium'\nn_layer = 3\n"))
    assert study.data["base"]["model"]["start"]["folder"] == "openai-community/gpt2-medium"
    assert "tokenizer" not in study.data["base"]["task"]
    assert [note.line for note in study.notes] == [2]


@pytest.mark.parametrize(
    "expression", ["9 ** 9 ** 9", "'a' * 10 ** 9", "[1] * 5", "__import__('os')", "1 / 0", "(" * 300]
)
def test_other_expressions_are_no_constants(expression):
    with pytest.raises(ValueError):  # noqa: PT011 (whatever the reason)
        parse_constant(expression)


# --- nanochat --------------------------------------------------------------------------------------------------------

SCRIPT = """\
#!/bin/bash
export X=1
python -m scripts.tok_train --max-chars=2000000000
# python -m scripts.base_train --depth=99
python -m scripts.base_train \\
    --depth=4 --head-dim 32 --aspect-ratio=16 \\
    --window-pattern=SL --max-seq-len=64 --device-batch-size=8 --total-batch-size=1024 \\
    --num-iterations=30 --warmup-steps=3 --eval-every=10 --sample-every=-1 --run=$NAME
torchrun --nproc_per_node=8 -m scripts.base_train -- --depth=$d --fp8 --invented=1 2>&1 | tee log
"""


def test_the_commands_of_a_script_become_studies(tmp_path):
    first, second = translate_config(write(tmp_path, "run.sh", SCRIPT))
    base = first.data["base"]
    assert (base["model"]["dim"], base["model"]["num_layers"], base["model"]["mixer"]["num_heads"]) == (64, 4, 2)
    assert base["model"]["mixer"]["mask"] == {"kind": "window", "width": 128, "pattern": "SL"}
    assert (base["train"]["steps"], base["train"]["batch_size"], base["train"]["accumulate"]) == (30, 16, 2)
    assert base["train"]["sample"] == "none"
    assert second.name == "run-2"
    assert second.data["base"]["model"]["num_layers"] == 20
    assert {note.setting.split(" = ")[0] for note in second.notes} == {"depth", "fp8", "--invented=1"}
    for study in (first, second):
        assert load_study(study.data).arms


@pytest.mark.slow
def test_a_command_of_nanochat_trains(poems):
    """For 20 steps, on a text that is here, with fewer tokens."""
    study = translate_config(write(poems, "run.sh", SCRIPT))[0]
    assert_trains(poems, study, {"task.val": 0.1, "task.tokenizer.vocab_size": 300})


def test_the_length_follows_from_the_depth(tmp_path):
    """Depth 12 is the reference: its batch has 2^19 tokens, and learning rates and decay are as given."""
    (study,) = translate_config(write(tmp_path, "run.sh", "python -m scripts.base_train --depth=12"))
    train = study.data["base"]["train"]
    parameters = 12 * 12 * 768**2 + 2**15 * 768
    assert train["batch_size"] * 2048 == 2**19
    assert train["steps"] == round(12 * parameters / 2**19)
    assert (train["optimizer"]["lr"], train["optimizer"]["weight_decay"]) == (0.02, 0.28)
    assert train["optimizer"]["groups"]["embedding"]["lr"] == pytest.approx(0.3 / 0.02)


def test_a_checkpoint_of_nanochat(tmp_path):
    given = {"user_config": {"depth": 4, "model_tag": "d4", "num_iterations": 20, "warmup_steps": 2, "run": "dummy"}}
    (study,) = translate_config(write(tmp_path, "meta_000020.json", json.dumps(given)))
    assert study.name == "d4"
    assert study.data["base"]["train"]["steps"] == 20


# --- files that are no configs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "kind", "line"),
    [
        ("a.txt", "hello\n", "", None),
        ("a.py", "print(1)\n", "", None),
        ("a.yaml", "study: a\n", "", None),
        ("a.txt", "ModelParams\ndim = wide\n", "", 2),
        ("a.txt", "ModelParams\nDataParam\n", "", 2),
        ("a.txt", "dim = 3\nModelParams\n", "", 1),
        ("a.txt", "ModelParams\ndim = []\n", "", 2),
        ("a.txt", "DataParams\nval_pct = 'ten'\n", "", None),
        ("a.py", "n_layer = (\n", "nanogpt", 1),
        ("a.json", "{}", "nanochat", None),
        ("a.sh", "ls\n", "nanochat", None),
        ("a.sh", "python -m scripts.base_train --depth='4\n", "nanochat", 1),
        ("a.txt", f"TrainParams\nlr = {[*range(1, 20)]}\nbatch_size = {[*range(1, 20)]}\n", "", None),
        ("a.txt", "ModelParams\n", "nanobot", None),
    ],
)
def test_other_files_are_refused_at_their_line(tmp_path, name, text, kind, line):
    file = write(tmp_path, name, text)
    with pytest.raises(UserError) as caught:
        translate_config(file, kind)
    assert caught.value.line == line
    assert caught.value.remedy or line
    if kind != "nanobot":
        assert caught.value.file == file


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ModelParams\n\xff\xfe")
    with pytest.raises(UserError):
        translate_config(tmp_path / "a.txt")
    with pytest.raises(UserError):
        translate_config(tmp_path)


# --- parts -----------------------------------------------------------------------------------------------------------


def test_changes_lead_from_one_baseline_to_another():
    old = {"model": {"a": {"kind": "x", "n": 1}, "b": 2, "c": {"kind": "y"}, "d": 1, "e": {"p": 1, "q": 2}}}
    new = {"model": {"a": {"kind": "x", "n": 3}, "b": 2, "c": {"kind": "z", "m": 1}, "e": {"p": 1}, "f": 4}}
    assert changes(old, new) == {
        "model.a.n": 3, "model.c": {"kind": "z", "m": 1}, "model.d": "none", "model.e": {"p": 1}, "model.f": 4,
    }  # fmt: skip
    assert at(new, "model.a.n") == 3
    assert at(new, "model.d") is None
    assert changes(old, old) == {}


@pytest.mark.parametrize(("module", "elsewhere"), [(nanogpt, []), (nanochat, ["model_tag"])])
def test_every_setting_is_translated_or_noted(module, elsewhere):
    """A translation reads each setting, or says why not. The tag of a model is the name of the study."""
    system = next(system for system in SYSTEMS.values() if system.translate is module.translate)
    read = set[str]()

    class Values(dict):
        def __getitem__(self, key):
            read.add(key)
            return super().__getitem__(key)

    config = ConfigFile("all", dict(system.defaults))
    system.translate(Values(system.defaults), config)
    assert system.defaults.keys() - read - config.notes.keys() - module.UNUSED.keys() == set(elsewhere)


def test_every_setting_of_lm_springboard_is_named_in_its_translation():
    source = Path(lm_springboard.__file__).read_text()
    names = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    text = " ".join(str(name) for name in names)
    for settings in lm_springboard.DEFAULTS.values():
        for name in settings:
            assert text.count(name) >= 2 or name in lm_springboard.INTERNAL, name
