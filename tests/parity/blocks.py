"""Comparisons of residual connections with a factor, embeddings, stems, positions at the input and initial weights."""

from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, DIM, DIMS, SEQ, TOKENS, VOCAB, build, randomised, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key
from taetpu.nn.logits import Softcap


def layer_scale(kind: str, **settings: Any) -> tuple[Any, Any]:
    """Compare with x-transformers' factor on a branch; the branch returns its input."""
    from x_transformers.x_transformers import LayerScale, Residual

    ours = randomised(build("residual", kind, **settings))
    x, y = stream(), stream(seed=3)
    scaled = LayerScale(torch.nn.Identity(), DIM)
    with torch.no_grad():
        scaled.gamma.copy_(torch.tensor(np.array(ours.factor)))
        expected = Residual(DIM)(scaled(torch.tensor(y)), torch.tensor(x)).numpy()
    return ours(jnp.asarray(x), jnp.asarray(y)), expected


@parity("residual/layer-scale", "x_transformers.x_transformers.LayerScale")
def vector():
    return layer_scale("layer-scale")


@parity("residual/rezero", "x_transformers.x_transformers.LayerScale")
def number():
    """The reference has a vector; all of its elements are the number."""
    return layer_scale("rezero")


@parity("residual/deepnorm", "x_transformers.x_transformers.Residual")
def deepnorm():
    """The reference takes the factor, which depends on the number of layers, as `scale_residual_constant`."""
    from x_transformers.x_transformers import Residual

    x, y = stream(), stream(seed=3)
    theirs = Residual(DIM, scale_residual_constant=(2 * DIMS.num_layers) ** 0.25)
    ours = build("residual", "deepnorm")(jnp.asarray(x), jnp.asarray(y))
    return ours, theirs(torch.tensor(y), torch.tensor(x)).numpy()


@parity("stem/scale", "transformers.models.gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding")
def scaled_embeddings():
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    table = randomised(build("embedding", "tied"))
    theirs = Gemma3TextScaledWordEmbedding(VOCAB, DIM, 0, embed_scale=DIM**0.5)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(np.array(table.weight)))
        expected = theirs(torch.tensor(TOKENS, dtype=torch.long)).numpy()
    return build("stem", "scale")(table.encode(jnp.asarray(TOKENS)), CONTEXT), expected


@parity("embedding/factorised", "transformers.models.albert.modeling_albert.AlbertModel", "the input")
def factorised():
    """Only the table and the projection of the reference are used, without the layer norm between them."""
    from transformers import AlbertConfig
    from transformers.models.albert.modeling_albert import AlbertModel

    ours = randomised(build("embedding", "factorised", size=6))
    theirs = AlbertModel(AlbertConfig(
        vocab_size=VOCAB, embedding_size=6, hidden_size=DIM, num_attention_heads=4, intermediate_size=24,
        num_hidden_layers=1,
    ))  # fmt: skip
    words, projection = theirs.embeddings.word_embeddings, theirs.encoder.embedding_hidden_mapping_in
    with torch.no_grad():
        words.weight.copy_(torch.tensor(np.array(ours.weight)))
        projection.weight.copy_(torch.tensor(np.array(ours.project)).T)
        projection.bias.zero_()
        expected = projection(words(torch.tensor(TOKENS, dtype=torch.long))).numpy()
    return ours.encode(jnp.asarray(TOKENS)), expected


@parity("position/sinusoidal", "transformers.models.speecht5.modeling_speecht5.SpeechT5ScaledPositionalEncoding")
def sinusoidal():
    """The reference adds the table to embeddings that are already scaled."""
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5ScaledPositionalEncoding

    module = build_component("position", {"kind": "sinusoidal"}).at_input(DIMS, key=root_key(0))
    theirs = SpeechT5ScaledPositionalEncoding(0.0, DIM, SEQ)
    with torch.no_grad():
        expected = theirs(torch.tensor(stream()) * DIM**0.5).numpy()
    return module(jnp.asarray(stream()), CONTEXT), expected


@parity("readout/dense", "transformers.models.bert.modeling_bert.BertPredictionHeadTransform")
def masked_head():
    from transformers.models.bert.modeling_bert import BertConfig, BertPredictionHeadTransform

    ours = randomised(build("readout", "dense", bias=True))
    theirs = BertPredictionHeadTransform(BertConfig(hidden_size=DIM, layer_norm_eps=1e-5))
    copies = {theirs.dense: (ours.dense.T, ours.dense_bias), theirs.LayerNorm: (ours.norm.weight, ours.norm.bias)}
    with torch.no_grad():
        for module, (weight, bias) in copies.items():
            module.weight.copy_(torch.tensor(np.array(weight)))
            module.bias.copy_(torch.zeros(DIM) if bias is None else torch.tensor(np.array(bias)))
        expected = theirs(torch.tensor(stream())).numpy()
    return ours(jnp.asarray(stream())), expected


@parity("readout/pooler", "transformers.models.bert.modeling_bert.BertPooler")
def pooler():
    """The reference reads the first position."""
    from transformers.models.bert.modeling_bert import BertConfig, BertPooler

    ours, theirs = randomised(build("readout", "pooler", bias=True)), BertPooler(BertConfig(hidden_size=DIM))
    with torch.no_grad():
        theirs.dense.weight.copy_(torch.tensor(np.array(ours.pooler)).T)
        theirs.dense.bias.copy_(torch.tensor(np.array(ours.pooler_bias)))
        expected = theirs(torch.tensor(stream())).numpy()
    return ours(jnp.asarray(stream()))[:, 0], expected


@parity("logits/softcap", "x_transformers.x_transformers.softclamp")
def logit_cap():
    from x_transformers.x_transformers import softclamp

    cap: Softcap = build_component("logits", {"kind": "softcap", "cap": 2.0}).init(DIMS, key=root_key(0))
    logits = 5 * stream(2, SEQ, VOCAB)
    return cap(jnp.asarray(logits)), softclamp(torch.tensor(logits), 2.0).numpy()


@parity("init/xavier", "torch.nn.init.xavier_normal_")
def xavier():
    """The reference's normal random numbers are replaced by ours."""
    shape = (DIM, 3 * DIM)
    drawn = np.array(jax.random.normal(root_key(0), shape))
    with patch("torch.nn.init._no_grad_normal_", lambda tensor, mean, std, *rest: mean + std * torch.tensor(drawn)):
        expected = torch.nn.init.xavier_normal_(torch.zeros(*shape))
    return build_component("init", "xavier").draw(DIMS, "up", shape, key=root_key(0)), expected.numpy()
