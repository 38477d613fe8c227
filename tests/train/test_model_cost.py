"""Parameters, FLOPs and activation bytes agree with formulas."""

from taetpu.core.config_parsing import load_config
from taetpu.core.tree import count_elements
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import ModelConfig
from taetpu.train.model_cost import activation_bytes, flops_per_token, num_params

VOCAB, SEQ, DIM = 7, 8, 16


def resolved(**settings):
    return load_config(ModelConfig, {"dim": DIM, "num_layers": 2, **settings}).resolve()


def test_num_params_counts_the_built_model(draw):
    settings = {"dim": DIM, "num_layers": 2, "bias": True, "embedding": "untied", "position": "learned"}
    model = draw(settings, vocab=VOCAB, seq=SEQ)
    assert num_params(load_config(ModelConfig, settings).resolve(), VOCAB, SEQ) == count_elements(
        partition_trainable(model)[0]
    )


def test_flops_are_six_per_weight_and_the_attention_products():
    plain = resolved(ffn={"kind": "relu"})
    weights = 2 * (4 * DIM * DIM + 2 * 4 * DIM * DIM) + DIM * VOCAB
    scores = 2 * 2 * 2 * SEQ * DIM  # layers, two products, multiply and add
    assert flops_per_token(plain, VOCAB, SEQ) == 6 * weights + 3 * scores


def test_a_rolled_stack_counts_every_layer(monkeypatch):
    deep = resolved(num_layers=4)
    unrolled = flops_per_token(deep, VOCAB, SEQ)
    monkeypatch.setattr("taetpu.nn.stack.UNROLL_UP_TO", 1)
    assert flops_per_token(deep, VOCAB, SEQ, "cudnn") == unrolled


def test_activation_bytes_grow_with_width_and_depth():
    def size(**settings):
        return activation_bytes(resolved(**settings), VOCAB, SEQ)

    wide = size(ffn={"kind": "relu", "hidden": 1024}) - size(ffn={"kind": "relu", "hidden": 512})
    assert wide >= 2 * SEQ * 512 * 4  # two layers, at least the hidden activations themselves
    assert size(num_layers=4) > 1.9 * size(num_layers=2) - SEQ * (VOCAB + DIM) * 40
