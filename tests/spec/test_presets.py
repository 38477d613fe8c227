"""Presets expand to known architectures, and studies lead from one to another."""

from itertools import permutations

import numpy as np
import pytest
from tests.suites import by_default
from tests.testing.test_training import compute_losses

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.nn.lm import ModelConfig
from taetpu.spec.loading import load_study
from taetpu.spec.preset_study import causal_presets, preset_model, write_study
from taetpu.spec.presets import PRESETS, expand_preset

STUDY = """\
study: s
base:
  task: {kind: copy, seq_len: 16}
  model: {preset: llama3, dim: 128, num_layers: 2, ffn: relu, mixer: {num_heads: 8}}
  train: {steps: 10}
"""


@pytest.fixture
def load(tmp_path):
    def write_and_load(text, *sets):
        (tmp_path / "s.yaml").write_text(text)
        return load_study(tmp_path / "s.yaml", sets)

    return write_and_load


@pytest.mark.parametrize("dim", by_default([8, 48, 128, 768, 4096], 48))
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_at_any_width(name, dim):
    model = load_config(ModelConfig, expand_preset({"preset": name, "dim": dim}))
    model.resolve().check(100, 64)
    assert model.num_layers == PRESETS[name].num_layers


@pytest.mark.parametrize(("name", "group"), [("llama3", 4), ("qwen3", 4), ("gemma3", 2)])
def test_query_heads_share_keys_at_each_width_that_permits_it(name, group):
    for dim in (48, 128, 640, 768, 896, 1152, 1280, 2560, 4096):
        mixer = PRESETS[name].settings(dim, 2)["mixer"]
        assert mixer["num_heads"] == group * mixer["num_kv_heads"]
        assert dim % (2 * mixer["num_heads"]) == 0
    assert "num_kv_heads" not in PRESETS[name].settings(2 * group + 2, 2)["mixer"]


def test_the_heads_of_the_published_models_are_kept():
    heads = {name: PRESETS[name].settings(4096, 2)["mixer"]["num_heads"] for name in ("llama3", "qwen3", "olmo2")}
    assert set(heads.values()) == {32}
    assert PRESETS["llama3"].settings(4096, 2)["mixer"]["num_kv_heads"] == 8


def test_settings_beside_a_preset_replace_its_own(load):
    model = load(STUDY).arms[0].config.model
    assert (model.layers[0].ffn.kind, model.layers[0].mixer.num_heads) == ("relu", 8)
    assert model.layers[0].norm.eps == 1e-5
    assert len(model.layers) == 2


def test_settings_beside_a_preset_reach_its_single_layers(load):
    text = STUDY.replace("preset: llama3, dim: 128, num_layers: 2", "preset: gemma3, dim: 128, num_layers: 6")
    layers = load(text).arms[0].config.model.layers
    assert {layer.mixer.num_heads for layer in layers} == {8}
    assert [getattr(layer.mixer.mask, "width", None) for layer in layers] == [51] * 5 + [None]
    assert [layer.position.base for layer in layers] == [1e4] * 5 + [1e6]


def test_a_size_set_on_the_command_line_changes_the_preset(load):
    text = STUDY.replace(", ffn: relu, mixer: {num_heads: 8}", "")
    config = load(text, "model.dim=1024").arms[0].config
    assert config.model.layers[0].mixer.num_heads == 8
    written = load(text.replace("128", "1024")).arms[0].config
    assert config == written


@pytest.mark.parametrize(
    ("old", "new", "problem", "remedy"),
    [
        ("llama3", "lama3", "unknown preset 'lama3'", "Did you mean 'llama3'?"),
        ("dim: 128, ", "", "preset 'llama3' needs a width", "Set dim"),
        ("dim: 128", "dim: wide", "got dim='wide'", "Set dim"),
    ],
)
def test_an_unknown_preset_or_a_missing_width_is_refused(load, old, new, problem, remedy):
    with pytest.raises(UserError, match="preset") as caught:
        load(STUDY.replace(old, new))
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)
    assert caught.value.path[:2] == ("base", "model")


def test_an_arm_cannot_change_the_preset(load):
    with pytest.raises(UserError, match="'preset'") as caught:
        load(STUDY + "arms: {other: {model.preset: gpt2}}\n")
    assert "taetpu new NAME --from PRESET --to PRESET" in str(caught.value.remedy)


PAIRS = [*permutations(causal_presets(), 2)]


@pytest.mark.parametrize("pair", by_default(PAIRS, ("llama3", "gemma3"), ("gemma3", "nanochat"), ("gpt2", "llama3")))
def test_all_differences_together_are_the_other_preset(load, pair):
    start, end = pair
    study = load(write_study("s", start, end, 64, 4))
    arms = {arm.name: arm for arm in study.arms}
    assert arms["baseline"].config.model == preset_model(start, 64, 4).resolve()
    found, expected = (to_data(one) for one in (arms["with-all"].config.model, preset_model(end, 64, 4).resolve()))
    assert plain(found) == plain(expected)
    assert len(arms) > 3


@pytest.mark.parametrize("pair", [("gpt2", "bert"), ("modernbert", "roberta")])
def test_a_study_of_next_tokens_has_no_encoder(pair):
    assert {*PRESETS} - {*causal_presets()} == {"bert", "roberta", "modernbert"}
    with pytest.raises(UserError, match=r"bert|modernbert") as caught:
        write_study("s", *pair, 64, 4)
    assert caught.value.path == ("--to" if pair[0] == "gpt2" else "--from",)
    assert "nanochat" in str(caught.value.remedy)


def plain(data):
    """Return a model's data in which the weights of norms are written in one of two equivalent ways."""
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [plain(one) for one in data]
    return "plain" if data == "unit-offset" else data


def test_a_difference_that_is_the_same_function_is_no_arm(load):
    text = write_study("s", "llama3", "gemma3", 64, 2)
    assert "# model.norm.weight (plain or unit-offset) is left out" in text
    written = {path: value for arm in load(text).arms for path, value in arm.overrides.items()}
    assert "model.norm.weight" not in written
    assert written["model.norm.placement"] == "sandwich"
    assert "model.norm.weight: none" in write_study("s", "llama3", "nanochat", 64, 2)


@pytest.mark.slow
def test_both_weights_of_norms_train_the_same_function(load):
    configs = [load(STUDY, f"model.norm.weight={weight}").arms[0].config for weight in ("plain", "unit-offset")]
    np.testing.assert_allclose(*map(compute_losses, configs), rtol=1e-4)


def test_sequences_are_longer_than_the_windows_of_a_preset(load):
    for dim, seq_len in ((64, 64), (512, 256)):
        study = load(write_study("s", "llama3", "gemma3", dim, 2))
        assert study.arms[0].config.task.seq_len == seq_len > study.arms[-1].config.model.layers[0].mixer.mask.width
