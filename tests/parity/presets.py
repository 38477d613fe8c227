"""Comparisons of presets: the logits of a tiny model with those of the class of transformers."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from tests.parity.registry import parity

from taetpu.core.keys import root_key
from taetpu.nn.lm import LMConfig, build_model
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.spec.preset_study import preset_model

VOCAB, SEQ, DIM, LAYERS = 13, 12, 32, 6
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)).astype(np.int32)
Arrays = dict[str, np.ndarray]


def reference(name: str, config: LMConfig, **settings: Any) -> tuple[Any, Arrays]:
    """Return a model of transformers with the sizes of a config and random parameters, and its arrays by name."""
    import transformers

    mixer = config.layers[0].mixer
    sizes = {
        "vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": mixer.num_heads,
        "num_key_value_heads": mixer.num_kv_heads or mixer.num_heads, "head_dim": DIM // mixer.num_heads,
        "max_position_embeddings": SEQ, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
        "attn_implementation": "eager",
    }  # fmt: skip
    made = getattr(transformers, f"{name}{'Text' * (name == 'Gemma3')}Config")(**{**sizes, **settings})
    torch.manual_seed(0)
    model = getattr(transformers, name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM"))(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model, {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}


def logits(config: LMConfig, model: Any, names: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the logits of our model and of the reference.

    `names` has the parameters of our model by logical name, with `{i}` for the number of a layer.
    """
    ours = build_model(config, VOCAB, SEQ, key=root_key(0))
    values = {
        name.format(i=i): np.asarray(array(i) if callable(array) else array)
        for name, array in names.items()
        for i in (range(LAYERS) if "{i}" in name else (0,))
    }
    known = set(named_parameters(ours))
    assert set(values) == known, sorted(set(values) ^ known)
    found = jax.jit(lambda model, tokens: model(tokens))(with_parameters(ours, values), TOKENS)
    with torch.no_grad():
        return found, model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


def layer(have: Arrays, name: str, transposed: bool = True) -> Callable[[int], np.ndarray]:
    """Return a function from the number of a layer to one of its arrays."""
    return lambda i: have[f"model.layers.{i}.{name}"].T if transposed else have[f"model.layers.{i}.{name}"]


def llama_names(have: Arrays, norms: Mapping[str, str], tied: bool = False) -> dict[str, Any]:
    """Return the parameters that most families name as Llama does; `norms` are those of a layer by our name."""
    names: dict[str, Any] = {f"layers.{{i}}.mixer.w{x}": layer(have, f"self_attn.{x}_proj.weight") for x in "qkvo"}
    names |= {f"layers.{{i}}.ffn.{x}": layer(have, f"mlp.{x}_proj.weight") for x in ("gate", "up", "down")}
    names |= {f"layers.{{i}}.{ours}.weight": layer(have, f"{theirs}.weight") for ours, theirs in norms.items()}
    names |= {"embedding.weight": have["model.embed_tokens.weight"], "norm.weight": have["model.norm.weight"]}
    return names if tied else {**names, "embedding.unembed": have["lm_head.weight"].T}


QK = {"mixer.qk_norm.q": "self_attn.q_norm", "mixer.qk_norm.k": "self_attn.k_norm"}


@parity("preset/gpt2", "transformers.GPT2LMHeadModel")
def gpt2():
    config = preset_model("gpt2", DIM, LAYERS).resolve()
    model, have = reference(
        "GPT2", config, n_embd=DIM, n_layer=LAYERS, n_head=config.layers[0].mixer.num_heads, n_positions=SEQ
    )
    have = {name.removeprefix("transformer."): array for name, array in have.items()}

    def part(name: str, x: str) -> Callable[[int], np.ndarray]:
        return lambda i: np.split(have[f"h.{i}.attn.c_attn.{name}"], 3, -1)["qkv".index(x)]

    def own(name: str) -> Callable[[int], np.ndarray]:
        return lambda i: have[f"h.{i}.{name}"]

    names: dict[str, Any] = {f"layers.{{i}}.mixer.w{x}": part("weight", x) for x in "qkv"}
    names |= {f"layers.{{i}}.mixer.b{x}": part("bias", x) for x in "qkv"}
    for ours, theirs in (("mixer.{}o", "attn.c_proj"), ("ffn.up{}", "mlp.c_fc"), ("ffn.down{}", "mlp.c_proj")):
        weight, bias = ("w", "b") if "mixer" in ours else ("", "_bias")
        names[f"layers.{{i}}.{ours.format(weight)}"] = own(f"{theirs}.weight")
        names[f"layers.{{i}}.{ours.format(bias)}"] = own(f"{theirs}.bias")
    for ours, theirs in (("mixer_norm", "ln_1"), ("ffn_norm", "ln_2")):
        names |= {f"layers.{{i}}.{ours}.{x}": own(f"{theirs}.{x}") for x in ("weight", "bias")}
    names |= {"embedding.weight": have["wte.weight"], "position.weight": have["wpe.weight"]}
    return logits(config, model, {**names, "norm.weight": have["ln_f.weight"], "norm.bias": have["ln_f.bias"]})


@parity("preset/llama3", "transformers.LlamaForCausalLM")
def llama3():
    config = preset_model("llama3", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    model, have = reference(
        "Llama", config, intermediate_size=112, rms_norm_eps=1e-5, rope_parameters=rope, tie_word_embeddings=False
    )
    norms = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    return logits(config, model, llama_names(have, norms))


@parity("preset/qwen3", "transformers.Qwen3ForCausalLM")
def qwen3():
    config = preset_model("qwen3", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    model, have = reference("Qwen3", config, intermediate_size=96, rope_parameters=rope, tie_word_embeddings=False)
    norms = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", **QK}
    return logits(config, model, llama_names(have, norms))


@parity("preset/olmo2", "transformers.Olmo2ForCausalLM")
def olmo2():
    config = preset_model("olmo2", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    model, have = reference(
        "Olmo2", config, intermediate_size=88, rms_norm_eps=1e-6, rope_parameters=rope, tie_word_embeddings=False
    )
    norms = {"mixer_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm", **QK}
    return logits(config, model, llama_names(have, norms))


@parity("preset/gemma3", "transformers.Gemma3ForCausalLM")
def gemma3():
    config = preset_model("gemma3", DIM, LAYERS).resolve()
    mixer = config.layers[0].mixer
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    model, have = reference(
        "Gemma3", config, intermediate_size=128, sliding_window=mixer.mask.width, rope_parameters=rope,
        query_pre_attn_scalar=DIM // mixer.num_heads,
    )  # fmt: skip
    norms = {
        "mixer_norm.before": "input_layernorm", "mixer_norm.after": "post_attention_layernorm",
        "ffn_norm.before": "pre_feedforward_layernorm", "ffn_norm.after": "post_feedforward_layernorm", **QK,
    }  # fmt: skip
    return logits(config, model, llama_names(have, norms, tied=True))


@parity("preset/nanochat", "transformers.NanoChatForCausalLM", "without the factor 1.2")
def nanochat():
    """The reference lacks the factor 1.2 of nanochat's code, so it is 1 here. Both rotate by the opposite angle, which
    is the same as exchanging the halves of each query and key.
    """
    model = preset_model("nanochat", DIM, LAYERS)
    qk_norm = model.mixer.qk_norm.model_copy(update={"factor": 1.0})
    config = model.model_copy(update={"mixer": model.mixer.model_copy(update={"qk_norm": qk_norm})}).resolve()
    theirs, have = reference("NanoChat", config, intermediate_size=4 * DIM)
    heads = config.layers[0].mixer.num_heads

    def exchanged(name: str) -> Callable[[int], np.ndarray]:
        found = layer(have, name)
        return lambda i: np.roll(found(i).reshape(DIM, heads, -1), DIM // heads // 2, -1).reshape(DIM, DIM)

    names: dict[str, Any] = {f"layers.{{i}}.mixer.w{x}": layer(have, f"self_attn.{x}_proj.weight") for x in "vo"}
    names |= {f"layers.{{i}}.mixer.w{x}": exchanged(f"self_attn.{x}_proj.weight") for x in "qk"}
    names |= {"layers.{i}.ffn.up": layer(have, "mlp.fc1.weight"), "layers.{i}.ffn.down": layer(have, "mlp.fc2.weight")}
    names |= {"embedding.weight": have["model.embed_tokens.weight"], "embedding.unembed": have["lm_head.weight"].T}
    return logits(config, theirs, names)
