"""The catalogue has an entry for every part of a Transformer that it is to have: as a kind, or as a field of one."""

import pytest

from taetpu.core.registry import BUILTIN_MODULES, kinds

ARCHITECTURE = tuple(slot for slot, module in BUILTIN_MODULES.items() if module.startswith("taetpu.nn."))
TIER_1 = {
    "multi-head attention": ["mixer/attention"],
    "grouped-query and multi-query attention": ["mixer/attention num_kv_heads", "mixer/attention head_dim"],
    "attention scale": ["mixer/attention scale"],
    "QK norm per head, of all heads and without weights": ["qk_norm/rms over", "qk_norm/rms weight"],
    "QK norm times 1.2": ["qk_norm/rms factor"],
    "soft cap of scores": ["scores/softcap cap"],
    "soft cap of logits": ["logits/softcap cap"],
    "sliding window": ["mask/window width"],
    "sink": ["normalizer/sink"],
    "softmax1": ["normalizer/softmax1"],
    "gated attention, by head and by element": ["gate/sigmoid over"],
    "NoPE": ["position/none"],
    "learned positions": ["position/learned"],
    "sinusoidal positions": ["position/sinusoidal"],
    "RoPE, half-split and interleaved, partial": [
        "position/rope pairs",
        "position/rope base",
        "position/rope fraction",
    ],
    "scaled RoPE": ["rope_scaling/linear", "rope_scaling/ntk", "rope_scaling/yarn", "rope_scaling/llama3"],
    "ALiBi": ["position/alibi"],
    "T5 bias": ["position/t5 buckets", "position/t5 max_distance"],
    "LayerNorm": ["norm/layer affine"],
    "RMSNorm": ["norm/rms weight"],
    "no norm": ["norm/none"],
    "DyT and Derf": ["norm/dyt", "norm/derf"],
    "placement of norms": ["norm/layer placement", "norm/rms placement"],
    "no ffn": ["ffn/none"],
    "ungated ffn": ["ffn/relu", "ffn/gelu-tanh", "ffn/gelu-erf", "ffn/silu", "ffn/relu2"],
    "gated ffn": ["ffn/glu", "ffn/bilinear", "ffn/reglu", "ffn/geglu", "ffn/geglu-tanh", "ffn/swiglu"],
    "clamped SwiGLU": ["ffn/clamped-swiglu"],
    "mixture of experts": ["ffn/moe top", "ffn/moe balance"],
    "standard residual": ["residual/standard"],
    "parallel branches, one norm and two": ["order/parallel", "order/parallel-two-norms"],
    "no residual, of both branches or one": ["residual/none branch"],
    "ReZero": ["residual/rezero"],
    "LayerScale": ["residual/layer-scale"],
    "value residual": ["values/residual"],
    "x0": ["after/x0"],
    "tied and untied embeddings": ["embedding/tied", "embedding/untied"],
    "scaled and normalised embeddings": ["stem/scale", "stem/norm"],
    "factorised embeddings": ["embedding/factorised size"],
    "stochastic depth": ["layer_dropout/stochastic-depth"],
    "initialisation": [f"init/{kind}" for kind in ("normal", "gpt2-scaled", "zero-out", "fan-in", "small", "mup")],
    "z-loss": ["hook/z-loss"],
    "label smoothing": ["hook/label-smoothing"],
    "optimizers": [f"optimizer/{kind}" for kind in ("adamw", "muon", "lion", "adafactor", "schedule-free")],
    "schedules": [f"schedule/{kind}" for kind in ("cosine", "linear", "inverse-sqrt", "wsd")],
}
TIER_2 = {
    "multi-head latent attention": ["mixer/mla"],
    "differential": ["mixer/differential"],
    "talking heads": ["normalizer/talking-heads"],
    "linear attention": ["mixer/linear"],
    "gated delta": ["mixer/gated-delta"],
    "Mamba 2": ["mixer/mamba2"],
    "sigmoid attention": ["normalizer/sigmoid bias"],
    "FIRE, KERPLE, xPos and CoPE": ["position/fire", "position/kerple", "position/xpos", "position/cope"],
    "DeepNorm": ["residual/deepnorm", "init/deepnorm"],
    "hyper-connections": [f"residual/{kind}" for kind in ("hyper-connections", "dynamic-hyper-connections", "mhc")],
    "U-net skips": ["after/u-net"],
    "DeepSeek mixture of experts": ["ffn/deepseek-moe"],
    "multi-token prediction": ["head/multi-token"],
    "LayerSkip": ["layer_dropout/layerskip", "head/early-exit"],
    "recurrent baselines": ["mixer/lstm", "mixer/gru"],
    "short convolutions": ["short_conv/canon"],
    "Macaron": ["order/macaron"],
    "optimizers": ["optimizer/soap", "optimizer/sophia"],
}


ENTRIES = [(entry, place) for table in (TIER_1, TIER_2) for entry, places in table.items() for place in places]


@pytest.mark.parametrize(("entry", "place"), ENTRIES)
def test_every_entry_is_a_kind_or_a_field_of_a_kind(entry, place):
    name, _, field = place.partition(" ")
    slot, kind = name.split("/")
    assert kind in kinds(slot)
    assert not field or field in kinds(slot)[kind].model_fields


def test_the_catalogue_has_the_planned_numbers_of_kinds():
    assert sum(len(kinds(slot)) for slot in ARCHITECTURE) >= 100
    assert len(kinds("optimizer")) >= 8
    assert len(kinds("schedule")) == 6
