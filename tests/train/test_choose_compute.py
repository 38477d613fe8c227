"""The choice of compute options by device, sequence length and size, and the report of exceptions."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from tests.suites import first_by_default

from taetpu.core.chips import parse_slice
from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.registry import register, unregister
from taetpu.core.static_dynamic import split
from taetpu.nn.attention import AttentionConfig
from taetpu.nn.attention_kernels import Plain
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.optim.hooks import Hook
from taetpu.spec.resolved_study import RunSpec
from taetpu.train.choose_compute import choose_compute, list_fallbacks
from taetpu.train.device_capabilities import Capabilities
from taetpu.train.layout import Layout
from taetpu.train.memory import state_bytes, step_bytes
from taetpu.train.pack_plan import PackPlan, plan_packs
from taetpu.train.program import Program

PLENTY = 1 << 50


class Reading(Hook):
    """A hook that reads the logits."""

    def loss(self, loss, logits, batch, model, now):
        return loss + jnp.mean(logits)


@pytest.fixture
def sized(make):
    """Return `sized(seq, model, **train)`, which returns a config with that sequence length and its source."""

    def of(seq=16, model=(), **train):
        task = {"kind": "copy", "seq_len": seq, "symbols": 6, "min_length": 2, "max_length": 6}
        config = make(task, {"num_layers": 2, **dict(model)}, **train)
        return config, config.task.prepare(None)

    return of


def attention(config, source, precision="bfloat16", platform="tpu"):
    return choose_compute(config, source, precision, platform=platform, memory=PLENTY).attention


def test_cpu_uses_the_default_options(sized):
    config, source = sized(512)
    assert choose_compute(config, source, "float32", memory=1) == DEFAULT_OPTIONS
    (plan,) = plan_packs([RunSpec("a", 0, config, "a0")], [source])
    assert not {"attention", "remat", "loss_chunk"} & set(plan.facts)


@pytest.mark.parametrize(
    ("platform", "precision", "seq", "model", "expected"),
    first_by_default(
        [
            ("tpu", "bfloat16", 512, {}, "splash"),
            ("tpu", "bfloat16", 512, {"dropout": 0.1}, "plain"),
            ("cuda", "bfloat16", 16, {}, "cudnn"),
            ("cpu", "bfloat16", 512, {}, "plain"),
            ("tpu", "bfloat16", 512, {"mixer": {"kind": "attention", "num_heads": 2, "scores": "softcap"}}, "plain"),
            ("tpu", "bfloat16", 512, {"mixer": "none"}, "plain"),
            ("tpu", "bfloat16", 512, {"layers": {0: {"mixer": "none"}}}, "splash"),
            ("tpu", "float32", 512, {}, "splash"),
            ("tpu", "bfloat16", 384, {}, "plain"),  # too short for a kernel to be faster
            ("tpu", "bfloat16", 520, {}, "plain"),  # not a multiple of 128
            ("cuda", "float32", 16, {}, "plain"),
            ("gpu", "bfloat16", 16, {}, "plain"),
        ],
        4,
    ),
)
def test_auto_selects_a_kernel_that_at_least_one_layer_supports(sized, platform, precision, seq, model, expected):
    assert attention(*sized(seq, model), precision, platform) == expected


def test_requested_options_are_used_or_refused(sized):
    config, source = sized(compute={"attention": "plain", "remat": "dots", "loss_chunk": 20})
    assert choose_compute(config, source, "float32") == ComputeOptions(remat="dots", loss_chunk=20)
    assert attention(*sized(128, compute={"attention": "splash"})) == "splash"  # shorter than auto would
    with pytest.raises(UserError, match=r"splash needs .*TPU, .* cpu"):
        choose_compute(*sized(compute={"attention": "splash"}), "float32")
    with pytest.raises(UserError, match=r"cudnn .*NVIDIA GPU"):
        Capabilities("gpu").check_path("cudnn")


def test_pack_with_a_kernel_cannot_resume_on_another_platform(sized):
    config, source = sized()
    with pytest.raises(UserError, match="kind of device"):
        Program(split(config)[0], source, Layout(1), steps=1, execution=ComputeOptions(attention="splash"))


def test_rematerialisation_depends_on_memory(sized):
    config, source = sized(512, {"num_layers": 6, "dim": 32}, batch_size=4)

    def found(memory):
        return choose_compute(config, source, "bfloat16", platform="tpu", memory=int(memory)).remat

    needed = {
        kept: state_bytes(config, source) + step_bytes(config, source, ComputeOptions(1, kept, "splash"), "bfloat16")
        for kept in ("none", "dots", "full")
    }
    assert needed["full"] < needed["dots"] < needed["none"]
    large = [found(needed["none"]), found(needed["none"] - 1), found(needed["dots"] - 1), found(1)]
    assert large == ["none", "dots", "full", "full"]


def test_large_logits_are_chunked_and_counted_as_chunks(sized):
    config, source = sized(512, batch_size=4)
    whole = 4 * 512 * source.vocab_size * 4  # sequences, positions, vocabulary, bytes

    def chunk(memory, config=config):
        return choose_compute(config, source, "float32", platform="tpu", memory=memory).loss_chunk

    assert chunk(16 * whole) is None
    assert chunk(16 * whole - 1) == 511  # a quarter of the tokens
    assert chunk(1) == 4  # one position of each sequence
    step = [step_bytes(config, source, ComputeOptions(loss_chunk=n)) for n in (None, 512)]
    assert step[0] - step[1] == whole * 3 // 4
    hooked = config.model_copy(update={"train": config.train.model_copy(update={"hooks": {"mine": Reading()}})})
    assert chunk(1, hooked) is None
    assert step_bytes(hooked, source, ComputeOptions(loss_chunk=512)) == step[0]
    (told,) = list_fallbacks(hooked, source, ComputeOptions(loss_chunk=512), "float32")
    assert str(told).startswith("the logits")
    assert "hook 'mine'" in str(told)


def test_layers_that_cannot_use_the_kernel_are_listed(sized):
    heads = {"kind": "attention", "num_heads": 2}
    model = {"num_layers": 4, "dropout": 0.1, "layers": {"1:3": {"mixer": {**heads, "scores": "softcap"}}}}
    config, source = sized(512, model)
    told = [str(one) for one in list_fallbacks(config, source, ComputeOptions(attention="splash"), "bfloat16")]
    assert told[0].startswith("attention of layers 0, 3 ")
    assert "in training: dropout" in told[0]
    assert told[1].startswith("attention of layers 1, 2 ")
    assert ": the scores" in told[1]
    assert len(told) == 2
    assert list_fallbacks(config, source, DEFAULT_OPTIONS, "bfloat16") == []
    assert "128 tokens, not 520" in str(list_fallbacks(*sized(520), ComputeOptions(attention="splash"), "bfloat16")[0])


class Own(Plain):
    """Attention with ReLU instead of softmax, which no kernel computes."""

    def read(self, attention, scores, v, ctx):
        return jax.nn.relu(scores).astype(v.dtype) @ v


@pytest.fixture
def own_path():
    @register("mixer", "own-path")
    class OwnPath(AttentionConfig):
        def init(self, dims, position, *, key):
            return eqx.tree_at(lambda a: a.path, super().init(dims, position, key=key), Own())

    yield
    unregister(__name__)


def test_component_with_its_own_path_uses_no_kernel_and_is_listed(sized, own_path):
    assert attention(*sized(512, {"mixer": "own-path"})) == "plain"
    config, source = sized(512, {"mixer": "own-path", "num_layers": 3, "layers": {0: {"mixer": "attention"}}})
    assert attention(config, source) == "splash"
    (told,) = list_fallbacks(config, source, ComputeOptions(attention="splash"), "bfloat16")
    assert str(told).startswith("attention of layers 1, 2 ")
    assert "the path Own:" in str(told)


@pytest.mark.parametrize(
    ("seq", "model", "platform", "divided", "reasons"),
    first_by_default(
        [
            (
                512,
                {"mixer": {"kind": "attention", "num_heads": 2, "scores": "softcap"}},
                "tpu",
                False,
                ["scores are changed"],
            ),
            (512, {"dropout": 0.1}, "tpu", False, [": dropout is applied"]),
            (512, {"dim": 512, "mixer": {"kind": "attention", "num_heads": 2}}, "tpu", False, ["at most 128, not 256"]),
            (520, {}, "tpu", False, ["multiple of 128 tokens, not 520"]),
            (512, {}, "tpu", True, ["divided over devices, which kernels"]),
            (384, {"dropout": 0.1}, "tpu", False, []),  # too short for a kernel
            (512, {"dropout": 0.1}, "cpu", False, []),
            (16, {"dropout": 0.1}, "cuda", False, [": dropout is applied"]),
            (512, {}, "tpu", False, []),
        ],
        3,
    ),
)
def test_reason_for_the_plain_path_is_listed_once(sized, seq, model, platform, divided, reasons):
    config, source = sized(seq, {"num_layers": 3, **model})
    execution = choose_compute(config, source, "bfloat16", platform=platform, memory=PLENTY)
    execution = replace(execution, attention="plain") if divided else execution
    told = [
        str(one) for one in list_fallbacks(config, source, execution, "bfloat16", platform=platform, divided=divided)
    ]
    assert len(told) == len(reasons)
    for one, reason in zip(told, reasons, strict=True):
        assert one.startswith("attention of layers 0, 1, 2 ")
        assert "the plain path" in one
        assert reason in one
    asked, _ = sized(seq, {"num_layers": 3, **model}, compute={"attention": "plain"})
    assert list_fallbacks(asked, source, DEFAULT_OPTIONS, "bfloat16", platform=platform) == []


@pytest.mark.parametrize(
    ("place", "data", "model", "refused"),
    [
        (Capabilities.of_slice(parse_slice("v5e-8")), 4, 2, None),
        (Capabilities.of_slice(parse_slice("v5e-8")), 3, 1, None),  # two devices stay idle
        (Capabilities.of_slice(parse_slice("v5e-1")), 4, 1, ("over 4 devices", "v5litepod-1 has 1")),
        (
            Capabilities.of_slice(parse_slice("v5e-16")),
            3,
            1,
            ("over 3 devices", "v5litepod-16 has 16"),
        ),  # each of its hosts takes part
        (Capabilities("cpu", 2), 4, 2, ("over 8 devices", "machine has 2")),
    ],
)
def test_division_is_checked_against_the_training_devices(place, data, model, refused):
    if refused is None:
        place.check_devices(data, model)
        return
    with pytest.raises(UserError) as refusal:
        place.check_devices(data, model)
    assert all(text in refusal.value.problem for text in refused)
    assert f"data times model = 1{', 2' if place.devices > 1 else ''}" in str(refusal.value)


def test_compute_options_are_stored_in_plans_and_facts(sized):
    config, source = sized(compute={"remat": "full", "loss_chunk": 12})
    (plan,) = plan_packs([RunSpec("a", 0, config, "a0")], [source])
    assert plan.compute == ComputeOptions(remat="full", loss_chunk=12)
    assert PackPlan.from_data(json.loads(json.dumps(plan.data))) == plan
    assert {name: plan.facts[name] for name in ("remat", "loss_chunk")} == {"remat": "full", "loss_chunk": 12}
    assert "attention" not in plan.facts
    before = {name: v for name, v in plan.data.items() if name not in ("attention", "remat", "loss_chunk")}
    assert PackPlan.from_data(before).compute == DEFAULT_OPTIONS  # a plan of an earlier version
    assert plan.halved(plan.runs)[0].compute == plan.compute


def test_levers_are_stored_only_when_they_are_set(sized):
    levers = {"logits": "bfloat16", "pad_vocab": 128, "cast": "step"}
    config, source = sized(model={"num_layers": 9}, compute={"unroll": "all", **levers})
    assert choose_compute(config, source, "float32") == ComputeOptions(unroll=9, **levers)
    (plan,) = plan_packs([RunSpec("a", 0, config, "a0")], [source])
    assert {name: plan.facts[name] for name in levers} == levers
    assert plan.facts["unroll"] == 9
    assert PackPlan.from_data(json.loads(json.dumps(plan.data))) == plan
    config, source = sized(compute={"unroll": 3})
    (plain,) = plan_packs([RunSpec("a", 0, config, "a0")], [source])
    assert not set(levers) & (set(plain.data) | set(plain.facts))
    assert plain.compute == ComputeOptions(unroll=3)
    half = choose_compute(
        *sized(512, batch_size=4, compute={"logits": "bfloat16"}), "bfloat16", platform="tpu", memory=1
    )
    assert half.loss_chunk == 4


def test_levers_without_effect_are_listed(sized, own_embedding):
    levers = ComputeOptions(logits="bfloat16", cast="step")
    config, source = sized(model={"embedding": "own-embedding"})
    (told,) = list_fallbacks(config, source, levers, "bfloat16")
    assert "'own-embedding'" in told
    config, source = sized()
    assert list_fallbacks(config, source, levers, "bfloat16") == []
    hooked = config.model_copy(update={"train": config.train.model_copy(update={"hooks": {"mine": Reading()}})})
    assert [line.count("hook 'mine'") for line in list_fallbacks(hooked, source, levers, "bfloat16")] == [1, 1]


class Table(eqx.Module):
    """An embedding that knows no form of logits."""

    weight: jax.Array

    def encode(self, tokens):
        return self.weight[tokens]

    def decode(self, x):
        return (x @ self.weight.T).astype(jnp.float32)


@pytest.fixture
def own_embedding():
    @register("embedding", "own-embedding")
    class OwnEmbedding(Component):
        def init(self, dims, *, key):
            return Table(dims.weight(key, dims.vocab_size, dims.dim, role="embedding"))

    yield
    unregister(__name__)
