"""The catalogue has an entry for every part of a Transformer that it is to have: a kind, a field or a value of a field.

A place is `SLOT/KIND`, `SLOT/KIND FIELD`, `SLOT/KIND FIELD=VALUE` or the path of a field, such as `train.clip`.
"""

import pytest
import yaml

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.spec.field_paths import find_fields

ARCHITECTURE = tuple(slot for slot, module in BUILTIN_MODULES.items() if module.startswith("taetpu.nn."))
TIER_1 = {
    "multi-head attention": ["mixer/attention"],
    "grouped-query and multi-query attention": ["mixer/attention num_kv_heads", "mixer/attention head_dim"],
    "attention scale": ["mixer/attention scale=1/head_dim", "mixer/attention scale=1.0"],
    "QK norm per head, of all heads and without weights": [
        "qk_norm/rms over=head",
        "qk_norm/rms over=all",
        "qk_norm/rms weight=none",
    ],
    "QK norm times 1.2": ["qk_norm/rms factor"],
    "soft cap of scores": ["scores/softcap cap"],
    "soft cap of logits": ["logits/softcap cap"],
    "sliding window": ["mask/window width"],
    "window pattern": ["mask/window pattern=SSSL", "mask/window last"],
    "bases of local and global layers": ["model.layers.0.position.base"],
    "sink": ["normalizer/sink"],
    "softmax1": ["normalizer/softmax1"],
    "gated attention, by head and by element": ["gate/sigmoid over=head", "gate/sigmoid over=element"],
    "NoPE, in all layers or some": ["position/none", "model.layers.0.position"],
    "learned positions": ["position/learned"],
    "sinusoidal positions": ["position/sinusoidal"],
    "RoPE, half-split and interleaved, partial": [
        "position/rope pairs=half",
        "position/rope pairs=interleaved",
        "position/rope base",
        "position/rope fraction",
    ],
    "scaled RoPE": ["rope_scaling/linear", "rope_scaling/ntk", "rope_scaling/yarn", "rope_scaling/llama3"],
    "ALiBi": ["position/alibi"],
    "T5 bias": ["position/t5 buckets", "position/t5 max_distance"],
    "LayerNorm": ["norm/layer affine"],
    "RMSNorm": ["norm/rms weight=plain", "norm/rms weight=unit-offset", "norm/rms weight=none"],
    "no norm": ["norm/none"],
    "DyT and Derf, with their own start at attention": ["norm/dyt mixer_alpha", "norm/derf mixer_alpha"],
    "placement of norms": [
        f"norm/{kind} placement={place}" for kind in ("layer", "rms") for place in ("pre", "post", "sandwich", "output")
    ],
    "no ffn": ["ffn/none"],
    "ungated ffn": ["ffn/relu", "ffn/gelu-tanh", "ffn/gelu-erf", "ffn/silu", "ffn/relu2"],
    "gated ffn": ["ffn/glu", "ffn/bilinear", "ffn/reglu", "ffn/geglu", "ffn/geglu-tanh", "ffn/swiglu"],
    "clamped SwiGLU": ["ffn/clamped-swiglu"],
    "mixture of experts": ["ffn/moe top", "ffn/moe balance"],
    "standard residual": ["residual/standard"],
    "parallel branches, one norm and two": ["order/parallel", "order/parallel-two-norms"],
    "no residual, of both branches or one": [f"residual/none branch={branch}" for branch in ("both", "mixer", "ffn")],
    "ReZero": ["residual/rezero"],
    "LayerScale": ["residual/layer-scale"],
    "value residual": ["values/residual"],
    "x0": ["after/x0"],
    "tied and untied embeddings": ["embedding/tied", "embedding/untied"],
    "scaled and normalised embeddings": ["stem/scale", "stem/norm"],
    "factorised embeddings": ["embedding/factorised size"],
    "shared layers, all or in groups": ["model.layers.1.same_as"],
    "stochastic depth": ["layer_dropout/stochastic-depth"],
    "initialisation": [f"init/{kind}" for kind in ("normal", "gpt2-scaled", "zero-out", "fan-in", "small", "mup")],
    "muP": ["init/mup base_dim", "logits/mup base_dim", "optimizer/adamw base_dim", "optimizer/adam base_dim"],
    "z-loss": ["hook/z-loss"],
    "label smoothing": ["hook/label-smoothing"],
    "optimizers": [f"optimizer/{kind}" for kind in ("adamw", "muon", "lion", "adafactor", "schedule-free")],
    "Muon with the learning rate of AdamW": ["optimizer/muon consistent_rms"],
    "schedules": [f"schedule/{kind}" for kind in ("cosine", "linear", "inverse-sqrt", "wsd")],
    "cooldowns": ["schedule/wsd decay_share", "schedule/wsd shape=linear", "schedule/wsd shape=1-sqrt"],
    "dropout": ["model.dropout"],
    "weight decay by group": ["train.optimizer.groups", "optimizer/adamw weight_decay"],
    "gradient clipping": ["train.clip"],
    "mean of parameters": ["train.optimizer.ema"],
}
TIER_2 = {
    "multi-head latent attention": [
        f"mixer/mla {width}" for width in ("q_latent", "kv_latent", "head_dim", "rope_dim", "value_dim")
    ],
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
    "DeepSeek mixture of experts": [f"ffn/deepseek-moe {field}" for field in ("bias_rate", "scale", "shared")],
    "multi-token prediction": ["head/multi-token ahead"],
    "sequential multi-token prediction": ["head/mtp depth", "head/mtp weight"],
    "LayerSkip": ["layer_dropout/layerskip", "head/early-exit"],
    "recurrent baselines": ["mixer/lstm", "mixer/gru"],
    "short convolutions": ["short_conv/canon"],
    "Macaron": ["order/macaron"],
    "optimizers": ["optimizer/soap", "optimizer/sophia"],
}


ENTRIES = [(entry, place) for table in (TIER_1, TIER_2) for entry, places in table.items() for place in places]


@pytest.mark.parametrize(("entry", "place"), ENTRIES)
def test_every_entry_is_a_kind_or_a_field(entry, place):
    assert exists(place)


@pytest.mark.parametrize(
    "place",
    ["norm/batch", "norm/rms affine", "norm/rms placement=inside", "mask/window pattern=SSX", "train.clipping"],
)
def test_places_that_do_not_exist_are_found(place):
    assert not exists(place)


def exists(place):
    """Return whether the product has a kind, a field or a value of a field."""
    name, _, setting = place.partition(" ")
    if "/" not in name:
        return has_field(name)
    slot, kind = name.split("/")
    field, _, value = setting.partition("=")
    if kind not in kinds(slot) or (field and field not in kinds(slot)[kind].model_fields):
        return False
    return not value or accepts(slot, {"kind": kind, field: yaml.safe_load(value) if value != "none" else value})


def has_field(path):
    try:
        return bool(find_fields(path))
    except UserError:
        return False


def accepts(slot, settings):
    try:
        build_component(slot, settings)
    except UserError:
        return False
    return True


def test_the_catalogue_has_the_planned_numbers_of_kinds():
    assert sum(len(kinds(slot)) for slot in ARCHITECTURE) >= 100
    assert len(kinds("optimizer")) >= 8
    assert len(kinds("schedule")) == 7
