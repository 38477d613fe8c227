"""Comparisons of presets: the logits of a tiny model with those of the class of transformers."""

from typing import Any

import jax
import numpy as np
import torch
from tests.parity.registry import parity

from taetpu.core.keys import root_key
from taetpu.interop.families import FAMILIES
from taetpu.interop.families.llama import llama_rules
from taetpu.interop.huggingface import read_parameters
from taetpu.interop.layouts import LINEAR, Rule
from taetpu.nn.lm import LM, LMConfig, build_model
from taetpu.nn.named_arrays import with_parameters
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
    purpose = {"GPT2": "LMHeadModel", **dict.fromkeys(("Bert", "Roberta", "ModernBert"), "ForMaskedLM")}
    model = getattr(transformers, name + purpose.get(name, "ForCausalLM"))(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model, {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}


def logits(config: LMConfig, model: Any, have: Arrays, family: str) -> tuple[Any, Any]:
    """Return the logits of our model and of the reference, whose arrays `have` an architecture of `interop` maps."""
    ours = build_model(config, VOCAB, SEQ, key=root_key(0))
    made = with_parameters(ours, read_parameters(FAMILIES[family], have, ours, config))
    return forward(made), their_logits(model)


def forward(model: LM) -> Any:
    """Return the logits of our model."""
    return jax.jit(lambda model, tokens: model(tokens))(model, TOKENS)


def their_logits(model: Any) -> np.ndarray:
    """Return the logits of the reference."""
    with torch.no_grad():
        return model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


@parity("preset/gpt2", "transformers.GPT2LMHeadModel")
def gpt2():
    config = preset_model("gpt2", DIM, LAYERS).resolve()
    sizes = {"n_embd": DIM, "n_layer": LAYERS, "n_head": config.layers[0].mixer.num_heads, "n_positions": SEQ}
    return logits(config, *reference("GPT2", config, **sizes), "gpt2")


@parity("preset/llama3", "transformers.LlamaForCausalLM")
def llama3():
    config = preset_model("llama3", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    settings = {"intermediate_size": 112, "rms_norm_eps": 1e-5, "rope_parameters": rope, "tie_word_embeddings": False}
    return logits(config, *reference("Llama", config, **settings), "llama")


@parity("preset/qwen3", "transformers.Qwen3ForCausalLM")
def qwen3():
    config = preset_model("qwen3", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    settings = {"intermediate_size": 96, "rope_parameters": rope, "tie_word_embeddings": False}
    return logits(config, *reference("Qwen3", config, **settings), "qwen3")


@parity("preset/olmo2", "transformers.Olmo2ForCausalLM")
def olmo2():
    config = preset_model("olmo2", DIM, LAYERS).resolve()
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    settings = {"intermediate_size": 88, "rms_norm_eps": 1e-6, "rope_parameters": rope, "tie_word_embeddings": False}
    return logits(config, *reference("Olmo2", config, **settings), "olmo2")


@parity("preset/gemma3", "transformers.Gemma3ForCausalLM")
def gemma3():
    config = preset_model("gemma3", DIM, LAYERS).resolve()
    mixer = config.layers[0].mixer
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    settings = {
        "intermediate_size": 128, "sliding_window": mixer.mask.width, "rope_parameters": rope,
        "query_pre_attn_scalar": DIM // mixer.num_heads,
    }  # fmt: skip
    return logits(config, *reference("Gemma3", config, **settings), "gemma3_text")


@parity("preset/bert", "transformers.BertForMaskedLM")
def bert():
    config = preset_model("bert", DIM, LAYERS).resolve()
    return logits(config, *reference("Bert", config, intermediate_size=4 * DIM), "bert")


@parity("preset/roberta", "transformers.RobertaForMaskedLM")
def roberta():
    """The positions of the reference start at 2, and the token of padding does not occur."""
    config = preset_model("roberta", DIM, LAYERS).resolve()
    sizes = {"vocab_size": VOCAB + 1, "pad_token_id": VOCAB, "max_position_embeddings": SEQ + VOCAB + 1}
    settings = {"intermediate_size": 4 * DIM, "layer_norm_eps": 1e-5, "type_vocab_size": 1, **sizes}
    model, have = reference("Roberta", config, **settings)
    table = "roberta.embeddings.position_embeddings.weight"
    have[table] = have[table][VOCAB - 1 :]  # two rows before that of the first position
    tokens = (
        "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.weight",
        "lm_head.bias",
        "lm_head.decoder.bias",
    )
    have |= {name: have[name][:VOCAB] for name in tokens}
    ours, theirs = logits(config, model, have, "roberta")
    return ours, theirs[..., :VOCAB]


@parity("order/sequential-one-norm", "transformers.ModernBertForMaskedLM")
@parity("preset/modernbert", "transformers.ModernBertForMaskedLM")
def modernbert():
    config = preset_model("modernbert", DIM, LAYERS).resolve()
    settings = {"intermediate_size": 48, "local_attention": config.layers[1].mixer.mask.width}
    return logits(config, *reference("ModernBert", config, **settings), "modernbert")


@parity("preset/nanochat", "transformers.NanoChatForCausalLM", "without the factor 1.2")
def nanochat():
    """The reference lacks the factor 1.2 of nanochat's code, so it is 1 here. Both rotate by the opposite angle, which
    is the same as exchanging the halves of each query and key.
    """
    model = preset_model("nanochat", DIM, LAYERS)
    qk_norm = model.mixer.qk_norm.model_copy(update={"factor": 1.0})
    config = model.model_copy(update={"mixer": model.mixer.model_copy(update={"qk_norm": qk_norm})}).resolve()
    theirs, have = reference("NanoChat", config, intermediate_size=4 * DIM)
    mlp = "model.layers.{i}.mlp"
    rules = (
        Rule(f"{mlp}.fc1.weight", "layers.{i}.ffn.up", LINEAR),
        Rule(f"{mlp}.fc2.weight", "layers.{i}.ffn.down", LINEAR),
    )
    renamed = type("Renamed", (FAMILIES["llama"],), {"rules": llama_rules({}, rules)})
    ours = build_model(config, VOCAB, SEQ, key=root_key(0))
    values = read_parameters(renamed, have, ours, config)
    half = DIM // config.layers[0].mixer.num_heads // 2

    def exchanged(w: np.ndarray) -> np.ndarray:
        return np.roll(w.reshape(DIM, -1, 2 * half), half, -1).reshape(DIM, DIM)

    turned = {name: exchanged(array) for name, array in values.items() if name.endswith((".wq", ".wk"))}
    return forward(with_parameters(ours, {**values, **turned})), their_logits(theirs)
