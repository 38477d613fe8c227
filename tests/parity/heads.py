"""Comparisons of heads: the losses of each position."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import BATCH, DIM, HEADS, SEQ, TOKENS, VOCAB, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import load_config
from taetpu.core.keys import root_key
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.loss import head_losses

MODEL = {
    "dim": DIM,
    "num_layers": 1,
    "mixer": {"kind": "attention", "num_heads": HEADS},
    "ffn": {"kind": "swiglu", "hidden": 24},
    "heads": {"future": {"kind": "mtp", "depth": 2}},
}
THEIRS = {
    "hidden_norm.weight": "hnorm.weight",
    "token_norm.weight": "enorm.weight",
    "projection": "eh_proj.weight",
    "norm.weight": "post_norm.weight",
    "block.mixer_norm.weight": "mtp_block.input_layernorm.weight",
    "block.ffn_norm.weight": "mtp_block.post_attention_layernorm.weight",
    **{f"block.mixer.w{x}": f"mtp_block.self_attn.{x}_proj.weight" for x in "qkvo"},
    **{f"block.ffn.{x}": f"mtp_block.mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
}


@parity("head/mtp", "transformers.modeling_layers.MtpLayer")
def mtp():
    """Two modules, each on the normalised output of the one before, as transformers' MtpModel calls them."""
    from transformers import LlamaConfig
    from transformers.modeling_layers import MtpLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

    config = load_config(ModelConfig, MODEL).resolve()
    params, rest = partition_trainable(build_model(config, VOCAB, SEQ, key=root_key(0)))
    rng = np.random.default_rng(1)
    model = combine_trainable(jax.tree.map(lambda a: a + 0.3 * rng.standard_normal(a.shape), params), rest)
    have = {name: torch.tensor(np.array(array, np.float32)) for name, array in named_parameters(model).items()}
    settings = LlamaConfig(
        vocab_size=VOCAB, hidden_size=DIM, intermediate_size=24, num_attention_heads=HEADS, rms_norm_eps=1e-6,
        attn_implementation="eager",
    )  # fmt: skip
    targets = np.roll(TOKENS, -1, 1)
    x, total = torch.tensor(stream()), torch.zeros(BATCH, SEQ)
    for k in (1, 2):
        layer = MtpLayer(settings, LlamaDecoderLayer, LlamaRMSNorm, 0)
        values = {theirs: have[f"heads.future.modules.{k - 1}.{ours}"] for ours, theirs in THEIRS.items()}
        values["eh_proj.weight"] = values["eh_proj.weight"].roll(DIM, 0)  # theirs has the token first
        layer.load_state_dict({name: a.T if a.ndim == 2 else a for name, a in values.items()})
        tokens = torch.tensor(np.pad(TOKENS[:, k:], ((0, 0), (0, k))), dtype=torch.long)
        positions = torch.arange(SEQ)[None] + k
        mask = torch.full((SEQ, SEQ), -torch.inf).triu(1)[None, None]
        with torch.no_grad():
            embedded = have["embedding.weight"][tokens]
            rotary = LlamaRotaryEmbedding(settings)(embedded, positions)
            x = layer(embedded, x, rotary, mask, positions, None)
            logits = x @ have["embedding.weight"].T
        wanted = torch.tensor(targets[:, k:].copy(), dtype=torch.long)
        losses = torch.nn.functional.cross_entropy(logits[:, :-k].flatten(0, 1), wanted.flatten(), reduction="none")
        total[:, :-k] += losses.reshape(BATCH, -1) / 2
    batch = Batch(jnp.asarray(TOKENS), jnp.asarray(targets), jnp.ones(TOKENS.shape))
    found = head_losses(model, config.heads, {"final": jnp.asarray(stream())}, batch)
    return found["future"], total.numpy()
