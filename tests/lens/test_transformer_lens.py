"""Parity with TransformerLens: logits, attention weights and the residual stream of random models built locally."""

import json
from copy import deepcopy
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.ablation.components import find_components
from taetpu.lens.ablation.documents import read_documents
from taetpu.lens.ablation.knockout import losses_of_sets
from taetpu.lens.ablation.replacements import Method, make_replacements
from taetpu.lens.attention import attention_maps
from taetpu.lens.embed import embed
from taetpu.lens.logit_lens import logit_lens

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
BOUND = 1e-4
VOCAB, SEQ = 19, 12
IDS = np.random.default_rng(0).integers(0, VOCAB, SEQ).tolist()
SETTINGS = {
    "gpt2": {"vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": 3, "n_head": 2, "bos_token_id": 0,
             "eos_token_id": 0},
    "gpt_neox": {"vocab_size": VOCAB, "max_position_embeddings": SEQ, "hidden_size": 32, "num_hidden_layers": 3,
                 "num_attention_heads": 2, "intermediate_size": 64, "bos_token_id": 0, "eos_token_id": 0},
}  # fmt: skip


@cache
def theirs(family):
    """Return a model of transformers with random parameters, and TransformerLens' view of it."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    classes = {"gpt2": (GPT2Config, GPT2LMHeadModel), "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM)}
    config_class, model_class = classes[family]
    torch.manual_seed(0)
    model = model_class(config_class(**SETTINGS[family], attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    words = {f"w{i}": i for i in range(VOCAB)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w0", pad_token="w0")
    bridge = TransformerBridge.boot_transformers(family, hf_model=deepcopy(model), tokenizer=tokenizer)  # changes it
    return model, bridge


@pytest.fixture(params=[*SETTINGS])
def pair(request, tmp_path):
    """Our model, opened from the folder that transformers writes, and the activations of TransformerLens."""
    model, bridge = theirs(request.param)
    model.save_pretrained(tmp_path)
    json.loads((tmp_path / "config.json").read_text())
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(torch.tensor([IDS]))
    return taetpu.open_run(tmp_path), logits[0].numpy(), cache


def test_logits(pair):
    ours, logits, _ = pair
    out = ours(IDS)
    np.testing.assert_allclose(out.tokens.strip(0, np.asarray(out.logits[0])), logits, atol=BOUND)


def test_attention_weights(pair):
    ours, _, cache = pair
    (maps,) = attention_maps(ours, IDS)
    assert [*maps.patterns] == [0, 1, 2]
    for layer, patterns in maps.patterns.items():
        np.testing.assert_allclose(patterns, cache[f"blocks.{layer}.attn.hook_pattern"][0].numpy(), atol=BOUND)


def test_the_residual_stream_and_what_it_predicts(pair):
    ours, _, cache = pair
    (lens,) = logit_lens(ours, IDS, top=1)
    for layer in range(3):
        stream = cache[f"blocks.{layer}.hook_out" if f"blocks.{layer}.hook_out" in cache else
                       f"blocks.{layer}.hook_resid_post"][0].numpy()  # fmt: skip
        np.testing.assert_allclose(embed(ours, IDS, layer=layer).vectors, stream, atol=1e-3)
        x = stream.astype(np.float64)
        x = x - x.mean(-1, keepdims=True)
        norm = ours.model.norm
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * np.asarray(norm.weight) + np.asarray(norm.bias)
        logits = np.asarray(ours.model.embedding.decode(jnp.asarray(x[None], jnp.float32)))[0]
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares = shares / shares.sum(-1, keepdims=True)
        np.testing.assert_allclose(lens.probabilities[layer + 1][:, 0], shares.max(-1), atol=1e-3)


@pytest.mark.parametrize("pair", ["gpt2"], indirect=True)
def test_prompts_longer_than_learned_positions_are_refused(pair):
    ours, *_ = pair
    with pytest.raises(UserError, match=r"'learned' positions .* 12 tokens .* 13"):
        attention_maps(ours, [*IDS, 0])


@pytest.mark.parametrize("family", [*SETTINGS])
def test_single_head_ablations_equal_a_loop_of_hooks(family, tmp_path):
    """Each head's `hook_z` is zeroed by a hook, and the losses of all targets are compared."""
    model, bridge = theirs(family)
    model.save_pretrained(tmp_path)
    opened = taetpu.open_run(tmp_path)
    rows = np.random.default_rng(1).integers(0, VOCAB, (4, SEQ))
    documents = read_documents(opened, rows)
    components = find_components(opened, "heads")
    sets = [(number,) for number in range(len(components))]
    ours = losses_of_sets(make_replacements(opened, components, documents, Method("zero")), sets)
    assert len(sets) == 6
    for number, component in enumerate(components.each):
        layer, head = map(int, component.name.split("."))

        def zero(z, hook, head=head):
            z = z.clone()
            z[:, :, head] = 0
            return z

        with torch.no_grad():
            hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
            logits = bridge.run_with_hooks(torch.tensor(rows[:, :-1]), fwd_hooks=hooks)
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), torch.tensor(rows[:, 1:]), reduction="none"
        ).sum(-1)
        np.testing.assert_allclose(ours[number], losses.numpy(), atol=BOUND)
