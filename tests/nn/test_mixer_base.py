"""What a mixer's config declares is what every part of taetpu reads, for built-in kinds and for those of plug-ins."""

import math
import re
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.page import write_plugin
from tests.testing.test_training import compute_losses

from taetpu.contract.no_op_reasons import find_wide_window
from taetpu.core.config import Component, SlotMark
from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.plugins import load_plugins
from taetpu.core.registry import kinds
from taetpu.core.slot_requirements import check_declaration
from taetpu.interop.comparison import Comparable
from taetpu.nn.attention import Attention, AttentionConfig
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.common import AttentionDims
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.mask import CausalConfig, FullConfig, WindowConfig
from taetpu.nn.mixer_base import MixerConfig
from taetpu.spec.run_ids import run_ids
from taetpu.spec.study_config import ResolvedConfig, RunConfig, with_static_windows
from taetpu.testing.mixer import check_declared
from taetpu.testing.report import CheckFailed, CheckNote
from taetpu.train.memory import kv_bytes
from taetpu.train.step import init_state

CAUSAL = {"kind": "copy", "seq_len": 16, "symbols": 5, "min_length": 2, "max_length": 6, "eval_size": 8}
ENCODER = {"kind": "sort", "form": "encoder", "seq_len": 12, "eval_size": 8}
WRITTEN = [{"mask": "full"}, {"causal": False}, {"mask": "full", "causal": False}, {"mask": "full", "causal": True}]


@pytest.fixture
def cosine(tmp_path):
    """Load the attention of docs/plugins.md."""
    load_plugins([write_plugin("cosine.py", tmp_path)])
    yield kinds("mixer")["cosine"]
    load_plugins([])


def model(mixer: Any, **settings: Any):
    return load_config(ModelConfig, {"dim": 16, "num_layers": 2, "mixer": mixer, **settings}).resolve()


def run_config(mixer: Any, task: Any = CAUSAL, **settings: Any) -> ResolvedConfig:
    train = {"steps": 20, "batch_size": 8, "sample": None, "schedule": "constant"}
    train["optimizer"] = {"kind": "adamw", "lr": 0.01}
    return load_config(
        RunConfig,
        {"task": task, "model": {"dim": 16, "num_layers": 2, "mixer": mixer, **settings}, "train": train},
    ).resolve()


# --- positions --------------------------------------------------------------------------------------------------------


def test_a_plug_ins_attention_passes_the_check_of_its_declarations(cosine):
    assert check_declared(cosine(num_heads=2))
    assert check_declared(cosine(num_heads=4, mask=FullConfig()))


@pytest.mark.slow
def test_a_plug_ins_attention_trains_with_shared_positions(cosine, tmp_path):
    """The layers share one table of biases, and no layer has another one."""
    config = run_config({"kind": "cosine", "num_heads": 2}, position="t5")
    config.check()
    losses = compute_losses(config)
    assert losses[-5:].mean() < losses[:5].mean()
    source = config.task.prepare(tmp_path)
    start = jax.eval_shape(lambda: init_state(config, source, jnp.int32(0))).model
    assert start.shared_scores.bias.shape == (32, 2)
    assert not jax.tree.leaves([stack.block.mixer.on_scores for stack in start.stacks])


@pytest.mark.slow
def test_shared_positions_act_in_a_plug_ins_attention(cosine, draw):
    found = draw({"dim": 16, "num_layers": 2, "mixer": {"kind": "cosine", "num_heads": 2}, "position": "t5"})
    tokens = jnp.arange(8)[None] % 7
    gradient = jax.grad(lambda bias: (replaced(found, bias)(tokens) ** 2).sum())(found.shared_scores.bias)
    assert np.abs(np.asarray(gradient)).max() > 1e-4


def replaced(found, bias):
    return replace(found, shared_scores=replace(found.shared_scores, bias=bias))


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "learned"])
def test_a_plug_ins_attention_decodes_with_a_cache_as_without(cosine, draw, position):
    found = draw({"dim": 16, "num_layers": 2, "mixer": {"kind": "cosine", "num_heads": 2}, "position": position})
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, 8)))
    first, cache = extend(found, tokens[:, :5], empty_cache(found, 2, 8))
    second, _ = extend(found, tokens[:, 5:], cache)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), found(tokens), atol=1e-5)


def test_the_cache_of_a_plug_in_is_counted(cosine, tmp_path):
    config = run_config({"kind": "cosine", "num_heads": 2}, layers={0: {"mixer": "none"}})
    source = config.task.prepare(tmp_path)
    assert kv_bytes(config, source) == 2 * source.seq_len * 2 * 16
    assert kv_bytes(run_config("lstm"), source) == 2 * (2 * 2 * 16)  # two layers, each with a cell and a hidden state


@pytest.mark.parametrize(
    "mixer",
    [
        {"kind": "attention", "num_heads": 4, "num_kv_heads": 2},
        {"kind": "mla", "num_heads": 2},
        "mamba2",
        "gated-delta",
        "lstm",
    ],
)
def test_the_counted_cache_is_that_of_decoding(mixer, tmp_path):
    config = run_config(mixer, num_layers=2)
    source = config.task.prepare(tmp_path)
    build = partial(build_model, config.model, source.interface, source.seq_len)
    cache = jax.eval_shape(lambda: empty_cache(build(key=root_key(0)), 1, source.seq_len, jnp.bfloat16))
    sizes = [math.prod(array.shape) * array.dtype.itemsize for stack in cache.stacks for array in stack.values()]
    assert kv_bytes(config, source) == sum(sizes)


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "differential"])
@pytest.mark.parametrize("task", [CAUSAL, ENCODER], ids=["causal", "encoder"])
def test_a_full_mask_and_causal_false_are_one_thing(kind, task):
    """Identities, refusals, models, static windows, comparisons and reasons are those of one config."""

    def answers(written):
        config = run_config({"kind": kind, **written}, task)
        mixer = config.model.layers[0].typed_mixer
        other = run_config({"kind": kind, "mask": {"kind": "window", "width": 64}}, task)
        return (
            run_ids(config, {0: ""}, "f"),
            refusal(config),
            mixer.effective_mask,
            mixer.is_causal,
            [mixer.fits_task(causal) for causal in (True, False)],
            with_static_windows(config.model),
            Comparable(config.model).layers,
            find_wide_window(config, other, 16),
            repr(jax.eval_shape(lambda: config.model.build(7, 8, key=jax.random.key(0)))),
        )

    first, *others = map(answers, WRITTEN)
    assert first[1:5] == (refusal_of(task, "full"), FullConfig(), False, [False, True])
    assert all(other == first for other in others)
    assert answers({})[2:5] == (CausalConfig(), True, [True, False])


def refusal(config: ResolvedConfig) -> tuple[str, str] | None:
    try:
        config.check()
    except UserError as error:
        return ".".join(map(str, error.path)), error.remedy or ""
    return None


def refusal_of(task: dict[str, Any], mask: str) -> tuple[str, str] | None:
    if (task is CAUSAL) == (mask != "full"):
        return None
    remedy = "Set mask: full." if task is ENCODER else "Use a causal mask."
    return "model.layers.0.mixer", remedy


@pytest.mark.parametrize("kind", ["attention", "differential", "mla", "cosine"])
def test_every_mixer_with_a_full_mask_is_refused_where_the_next_token_is_predicted(cosine, kind):
    config = run_config({"kind": kind, "num_heads": 2, "mask": "full"})
    assert refusal(config) == refusal_of(CAUSAL, "full")
    assert refusal(run_config({"kind": kind, "num_heads": 2, "mask": "full"}, ENCODER)) is None
    assert refusal(run_config({"kind": kind, "num_heads": 2})) is None


@pytest.mark.parametrize("kind", ["mla", "cosine"])
def test_windows_of_every_mixer_are_resolved_by_layer(cosine, kind):
    found = model({"kind": kind, "num_heads": 2, "mask": {"kind": "window", "width": 4, "pattern": "SL"}}, num_layers=4)
    widths = [layer.typed_mixer.effective_mask.width for layer in found.layers]
    assert widths == [4, None, 4, None]
    assert [layer.mixer.mask.width for layer in with_static_windows(found).layers] == widths


@pytest.mark.parametrize("kind", kinds("mixer"))
def test_a_mixer_without_a_mask_fits_every_task(kind):
    mixer: Any = build_component("mixer", kind)
    has_mask = {"mask", "causal"} & set(type(mixer).model_fields)
    assert isinstance(mixer, MixerConfig)
    assert (mixer.effective_mask is None) == (not has_mask)
    assert mixer.is_causal
    assert mixer.fits_task(causal=True)
    assert mixer.fits_task(causal=False) == ("causal" not in type(mixer).model_fields)


# --- mixers that extend only Component --------------------------------------------------------------------------------


class Plain(Component):
    """An attention that was written before `MixerConfig`. Its `heads` and `cache_size` mean something else."""

    slot: ClassVar[str] = "mixer"
    kind: ClassVar[str] = "plain"
    plugin: ClassVar[str] = "digest"

    heads: str = "mine"
    num_heads: int = 4
    num_kv_heads: int | None = 2
    causal: bool = True
    mask: Annotated[Any, SlotMark("mask")] = CausalConfig()

    def cache_size(self):
        return "large"

    def init(self, dims, position, *, key):
        return AttentionConfig(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads).init(dims, position, key=key)


def test_a_mixer_that_extends_only_component_answers_by_its_fields():
    check_declaration(Plain)
    found = model(Plain(mask=WindowConfig(width=3, pattern="SL", last=False)))
    mixer = found.layers[0].typed_mixer
    assert mixer.heads(found.dims(7, 8)) == AttentionDims(4, 2, 4)
    assert (mixer.position_parts, mixer.cache_size(found.dims(7, 8))) == ((), None)
    assert [layer.typed_mixer.effective_mask.width for layer in found.layers] == [3, None]
    assert type(found.layers[0].mixer) is Plain
    assert model(Plain(causal=False)).layers[0].typed_mixer.effective_mask == FullConfig()
    assert refusal(run_config(Plain(causal=False))) == refusal_of(CAUSAL, "full")
    assert refusal(run_config(Plain(), ENCODER)) == refusal_of(ENCODER, "causal")


def test_a_mixer_that_extends_only_component_is_built_and_refused_with_shared_positions():
    module = jax.eval_shape(lambda: model(Plain()).build(7, 8, key=jax.random.key(0))).stacks[0].block.mixer
    assert isinstance(module, Attention)
    with pytest.raises(UserError) as caught:
        model(Plain(), position="t5").check(7, 8)
    assert caught.value.path == ("position",)
    assert "MixerConfig" in (caught.value.remedy or "")


# --- declarations that are wrong --------------------------------------------------------------------------------------


class Wrong(AttentionConfig):
    slot: ClassVar[str] = "mixer"
    kind: ClassVar[str] = "wrong"


class TooFew(Wrong):
    position_parts = ("in_attention",)


class TooLarge(Wrong):
    def cache_size(self, dims):
        return 5


class Wide(Wrong):
    def position_heads(self, dims):
        return replace(self.heads(dims), head_dim=6)


@pytest.mark.parametrize(("cls", "words"), [(TooFew, "on_scores"), (TooLarge, "5 at .* 32"), (Wide, "8, 4.*8, 6")])
def test_declarations_that_do_not_hold_are_reported(cls, words):
    with pytest.raises(CheckFailed) as caught:
        check_declared(cls(num_heads=4))
    assert re.search(words, caught.value.message)


def test_undeclared_calls_of_positions_are_noted_for_a_mixer_that_extends_only_component():
    with pytest.raises(CheckNote, match=r"in_attention.*on_scores"):
        check_declared(Plain())


def test_members_of_the_base_must_accept_the_calls():
    class NoSizes(Wrong):
        def heads(self):
            return None

    with pytest.raises(UserError, match=r"NoSizes\.heads .*arguments"):
        check_declaration(NoSizes)
