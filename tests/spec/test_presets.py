"""Presets expand to known architectures, and studies lead from one to another."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tests.suites import by_default
from tests.testing.test_training import compute_losses

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.nn.lm import ModelConfig
from taetpu.spec.loading import load_study
from taetpu.spec.preset_differences import Difference, join_dependent
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


ENCODERS = [*permutations(sorted({*PRESETS} - {*causal_presets()}), 2)]
SHOWN = [("llama3", "gemma3"), ("gemma3", "nanochat"), ("gpt2", "llama3"), ("bert", "modernbert")]


@pytest.mark.parametrize("pair", by_default(PAIRS + ENCODERS, *SHOWN))
def test_all_differences_together_lead_to_exactly_the_other_preset(load, pair):
    models = [preset_model(name, 64, 4).resolve() for name in pair]
    for design, first in (("forward", 0), ("backward", 1)):
        arms = {arm.name: arm for arm in load(write_study("s", *pair, 64, 4, design)).arms}
        assert arms["baseline"].config.model == models[first]
        assert arms["with-all" if design == "forward" else "without-all"].config.model == models[1 - first]
        assert len(arms) > 3


@pytest.mark.parametrize("pair", by_default(PAIRS + ENCODERS, *SHOWN[:2]))
def test_both_ways_in_one_study_has_the_arms_of_the_two_studies(load, pair):
    forward, backward, both = (
        {arm.name: arm for arm in load(write_study("s", *pair, 64, 4, design)).arms}
        for design in ("forward", "backward", "both")
    )
    assert both.keys() == forward.keys() | {name.replace("without", "with-all-but") for name in {*backward} - {*ENDS}}
    for name, arm in both.items():
        alike = backward[name.replace("with-all-but", "without")] if "all-but" in name else forward[name]
        assert arm.config == alike.config
        assert arm.role.get("against", "baseline") == ("with-all" if "all-but" in name else "baseline")


ENDS = ("baseline", "without-all")


def test_the_arms_at_both_ends_have_the_runs_of_the_presets(load):
    runs = [
        {(run.arm, run.seed): run.id for run in load(text).runs()}
        for text in (
            *(write_study("s", "llama3", "gemma3", 16, 2, design) for design in ("both", "backward")),
            *(write_study("s", *pair, 16, 2) for pair in (("llama3", "qwen3"), ("gemma3", "qwen3"))),
        )
    ]
    both, backward, llama3, gemma3 = runs
    for seed in range(5):
        assert both["with-all", seed] == gemma3["baseline", seed] == backward["baseline", seed]
        assert both["baseline", seed] == llama3["baseline", seed] == backward["without-all", seed]
    assert len({*both.values()}) == len(both)


@pytest.mark.parametrize("design", ["forward", "backward", "both"])
def test_a_difference_that_needs_another_is_joined_with_it(load, design):
    arms = load(write_study("s", "bert", "modernbert", 64, 6, design)).arms
    parts = {arm.role.get("part") or arm.role.get("part_left") for arm in arms}
    assert parts > {"mixer-causal+mask", "norm-placement+order", "ffn"}
    assert not parts & {"mask", "order", "norm-placement", "mixer-causal"}


def test_a_difference_that_no_other_makes_valid_is_refused_by_name():
    parts = [Difference(name, {name: 1}, {name: 0}, (name,)) for name in ("rope", "heads")]
    with pytest.raises(UserError, match="heads") as caught:
        join_dependent(parts, lambda changes: "heads" not in changes, lambda changes: True)
    assert "--dim" in str(caught.value.remedy)
    assert [part.name for part in join_dependent(parts, lambda changes: True, lambda changes: True)] == [
        "rope",
        "heads",
    ]


def test_a_study_between_presets_has_a_comment_for_each_difference():
    lines = write_study("s", "llama3", "gemma3", 64, 6, "both").splitlines()
    parts = [
        i
        for i, line in enumerate(lines)
        if line.startswith("  ") and line[2] not in " #" and i > lines.index("add_one_in:")
    ]
    assert all(lines[i - 1].startswith("  # ") for i in parts if "both_ways" not in lines[i])
    assert "  # mixer.mask: causal -> {kind: window, width: 26} in layers 0 to 4" in lines
    assert "  # norm.eps: 1e-05 -> 1e-06" in lines
    assert max(map(len, lines)) <= 120


def test_the_shipped_study_has_the_parts_that_the_command_writes(load):
    shipped = Path(__file__).parents[2] / "studies/llama3-to-gemma3.yaml"
    written = write_study("llama3-to-gemma3", "llama3", "gemma3", 64, 4, "both")
    assert shipped.read_text().partition("add_one_in:")[2] == written.partition("add_one_in:")[2]
    arms = [load_study(shipped).arms, load(written).arms]
    shipped_arms, written_arms = ({arm.name: arm.config.model for arm in each} for each in arms)
    assert shipped_arms == written_arms


@pytest.mark.parametrize(("pair", "fits"), [(("gpt2", "bert"), "nanochat"), (("modernbert", "gpt2"), "roberta")])
def test_an_encoder_is_not_compared_with_a_model_of_next_tokens(pair, fits):
    with pytest.raises(UserError, match="bert") as caught:
        write_study("s", *pair, 64, 4)
    assert caught.value.path == ("--to",)
    assert fits in str(caught.value.remedy)


def test_encoders_are_compared_as_masked_language_models(load):
    task = load(write_study("s", "bert", "modernbert", 64, 2)).arms[0].config.task
    assert task.objective.kind == "masked-lm"


def test_a_difference_that_is_the_same_function_is_part_of_another(load):
    text = write_study("s", "llama3", "gemma3", 64, 2)
    arms = [arm.name for arm in load(text).arms if "model.norm.weight" in arm.overrides]
    assert arms == ["with-norm-placement", "with-all"]
    assert "model.norm.weight: none" in write_study("s", "llama3", "nanochat", 64, 2)


@pytest.mark.slow
def test_both_weights_of_norms_train_the_same_function(load):
    configs = [load(STUDY, f"model.norm.weight={weight}").arms[0].config for weight in ("plain", "unit-offset")]
    np.testing.assert_allclose(*map(compute_losses, configs), rtol=1e-4)


def test_sequences_are_longer_than_the_windows_of_a_preset(load):
    for dim, seq_len in ((64, 64), (512, 256)):
        study = load(write_study("s", "llama3", "gemma3", dim, 2))
        assert study.arms[0].config.task.seq_len == seq_len > study.arms[-1].config.model.layers[0].mixer.mask.width
