"""Encoders: what is refused, which files are read, and as which architecture a model is written."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from tests.interop.cases import BERT, SEQ, TOKENS, VOCAB, arrays, forward, their_logits, theirs

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.model_interface import Interface
from taetpu.data.labelled.sequences import with_frame
from taetpu.data.tokenizers.characters import CharConfig
from taetpu.interop.exporting import save_folder, to_huggingface
from taetpu.interop.huggingface import from_huggingface, import_folder, import_model
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.spec.preset_study import preset_model


def files_of(case):
    """Return the content of a case's `config.json`, and its arrays by name."""
    hf = theirs(case)
    return {**hf.config.to_dict(), "architectures": [type(hf).__name__]}, arrays(hf)


REFUSED = {
    "relative positions": ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type", "absolute"),
    "a decoder": ("bert", {"is_decoder": True}, "is_decoder", "False"),
    "cross attention": ("bert", {"add_cross_attention": True}, "add_cross_attention", "False"),
    "another output matrix": ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings", "True"),
    "another activation": ("bert", {"hidden_act": "gelo"}, "hidden_act", "'gelu'"),
    "a misspelt setting": ("bert", {"type_vocab_sizes": 2}, "type_vocab_sizes", "'type_vocab_size'"),
    "another class": ("bert", {"architectures": ["BertForQuestionAnswering"]}, "architectures", "BertForMaskedLM"),
    "another padding": ("roberta", {"pad_token_id": 0}, "pad_token_id", "1"),
    "no positions": ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings", "3"),
    "no causal attention": ("roberta", {"is_causal": True}, "is_causal", "False"),
    "another pooling": ("modernbert-classes", {"classifier_pooling": "mean"}, "classifier_pooling", "'cls'"),
    "another type of layer": ("modernbert", {"layer_types": ["full_attention", *["sliding"] * 4]}, "layer_types.1",
                              "sliding_attention"),
    "no classes": ("bert-classes", {"id2label": None, "num_labels": 0}, "num_labels", "id2label"),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_encoders_that_are_not_read(change):
    case, settings, place, remedy = REFUSED[change]
    config, tensors = files_of(case)
    with pytest.raises(UserError) as caught:
        from_huggingface(config | settings, tensors)
    assert ".".join(map(str, caught.value.path)) == place
    assert remedy in caught.value.remedy


def test_a_bias_that_is_stored_twice_has_one_value():
    config, tensors = files_of("bert")
    copy, main = "cls.predictions.decoder.bias", "cls.predictions.bias"
    for name in (copy, main):
        one = {key: array for key, array in tensors.items() if key != name}
        np.testing.assert_array_equal(from_huggingface(config, one)[1].embedding.bias, tensors[main])
    with pytest.raises(UserError) as caught:
        from_huggingface(config, tensors | {copy: tensors[copy] + 1})
    assert copy in caught.value.problem
    assert main in caught.value.problem


@pytest.mark.slow
def test_a_file_of_pre_training_has_the_masked_language_model(tmp_path):
    """The files of the first BERT models have other names of norms too."""
    torch.manual_seed(1)
    hf = transformers.BertForPreTraining(transformers.BertConfig(**BERT, attn_implementation="eager")).eval()
    hf.save_pretrained(tmp_path)
    made = import_folder(tmp_path)
    with torch.no_grad():
        expected = hf(torch.tensor(TOKENS, dtype=torch.long)).prediction_logits.numpy()
    np.testing.assert_allclose(forward(made.model, TOKENS), expected, atol=5e-5)
    earlier = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays(hf).items()
    }
    assert any(name.endswith("gamma") for name in earlier)
    again = from_huggingface({**hf.config.to_dict(), "architectures": ["BertForMaskedLM"]}, earlier)[1]
    np.testing.assert_array_equal(forward(again, TOKENS), forward(made.model, TOKENS))


def test_classes_are_outputs():
    made = import_model(*files_of("bert-classes"))
    assert made.interface == Interface(VOCAB, outputs=3, pooling="first")
    settings, _ = to_huggingface(made.config, made.model, interface=made.interface)
    assert len(settings["id2label"]) == 3
    named = replace(made.interface, labels=("bad", "good", "other"))
    settings, _ = to_huggingface(made.config, made.model, interface=named)
    assert settings["id2label"] == {"0": "bad", "1": "good", "2": "other"}
    with pytest.raises(UserError) as caught:
        to_huggingface(made.config, made.model, family="bloom")
    assert "'bloom'" in caught.value.problem
    assert "bert" in caught.value.remedy


@pytest.mark.parametrize(
    ("case", "pooling", "place", "remedy"),
    [
        ("bert-classes", "last", ("task", "pooling"), "first"),
        ("modernbert-classes", "mean", ("task", "pooling"), "first"),
        ("llama-classes", "first", ("task", "pooling"), "last"),
        ("llama-classes", "mean", ("task", "pooling"), "last"),
        ("bert-classes", "", ("task",), "classification"),
    ],
)
def test_a_classifier_that_reads_another_position_is_refused(case, pooling, place, remedy):
    """The classes in transformers read the first position, or the last one."""
    made = import_model(*files_of(case))
    with pytest.raises(UserError) as caught:
        to_huggingface(made.config, made.model, interface=replace(made.interface, pooling=pooling))
    assert caught.value.path == place
    assert remedy in caught.value.remedy
    assert (pooling or "3 outputs") in caught.value.problem


@pytest.mark.parametrize(("padding", "written"), [(1, None), (0, 0)])
def test_the_token_of_padding_that_ends_texts_is_not_written(padding, written, tmp_path):
    """transformers would read the outputs of the token before it."""
    made = import_model(*files_of("llama-classes"))
    tokenizer = CharConfig().train("abcdefghij")
    tokenizer = with_frame(tokenizer, None, tokenizer.token(1), add=False)
    options = {"interface": made.interface, "tokenizer": tokenizer, "special_tokens": {"pad_token_id": padding}}
    save_folder(tmp_path / "out", made.config, made.model, **options)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == written


@pytest.mark.parametrize(("padding", "expected"), [(None, "bert"), (0, "bert"), (1, "roberta")])
def test_roberta_is_written_if_its_token_of_padding_is_that_of_the_model(draw, padding, expected):
    """In transformers, RoBERTa numbers positions by the tokens that are not padding."""
    config = preset_model("roberta", 16, 2)
    model = draw(config, vocab=VOCAB, seq=SEQ)
    settings, _ = to_huggingface(config, model, special_tokens={"pad_token_id": padding})
    assert settings["model_type"] == expected
    if expected == "bert":
        with pytest.raises(UserError) as caught:
            to_huggingface(config, model, family="roberta", special_tokens={"pad_token_id": padding})
        assert caught.value.path == ("pad_token_id",)


def test_a_model_without_types_is_written_as_bert_with_zeros(draw):
    given = preset_model("bert", 16, 2).model_copy(update={"types": None})
    model = draw(given, vocab=VOCAB, seq=SEQ)
    settings, tensors = to_huggingface(given, model)
    assert (settings["model_type"], settings["type_vocab_size"]) == ("bert", 1)
    assert not tensors["bert.embeddings.token_type_embeddings.weight"].any()
    hf = transformers.BertForMaskedLM(transformers.BertConfig(**settings, attn_implementation="eager")).eval()
    hf.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()}, strict=False)
    hf.tie_weights()
    np.testing.assert_allclose(forward(model, TOKENS), their_logits(hf), atol=5e-5)


@pytest.mark.parametrize(("preset", "padding"), [("bert", 0), ("roberta", 1), ("modernbert", None)])
def test_a_preset_is_written_as_its_architecture(draw, preset, padding):
    config = preset_model(preset, 16, 4)
    model = draw(config, vocab=VOCAB, seq=SEQ)
    settings, tensors = to_huggingface(config, model, special_tokens={"pad_token_id": padding})
    assert settings["model_type"] == preset
    again, same = from_huggingface(settings, tensors)
    np.testing.assert_array_equal(forward(same, TOKENS), forward(model, TOKENS))
    assert again.types == config.types


TYPES = {
    "task with more types": ({"types": 2}, Interface(7, types=3)),
    "real inputs": ({"types": 1}, Interface(0, 1, 2)),
}


TYPES = {
    "a task with more types": ({"types": 2}, Interface(7, types=3)),
    "real inputs": ({"types": 1}, Interface(0, outputs=1, features=2)),
}


@pytest.mark.parametrize("case", TYPES)
def test_types_that_do_not_fit_the_task_are_refused(case):
    settings, interface = TYPES[case]
    config = load_config(ModelConfig, {"dim": 8, "num_layers": 1, "embedding": "untied", **settings}).resolve()
    with pytest.raises(UserError) as caught:
        config.check(interface, 8)
    assert caught.value.path == ("types",)


@pytest.mark.parametrize(("types", "rows"), [(None, 3), (0, None), (1, 1), (3, 3)])
def test_a_model_has_vectors_of_its_types_or_of_those_of_the_task(types, rows):
    settings = {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}, "types": types}
    config = load_config(ModelConfig, settings).resolve()
    model = jit_once(lambda: build_model(config, Interface(VOCAB, types=3), SEQ, key=root_key(0)))()
    assert (None if model.types is None else len(model.types)) == rows
    tokens, compute = jnp.asarray(TOKENS), jit_once(lambda model, tokens, types: model(tokens, types=types))
    same, other = (np.asarray(compute(model, tokens, np.full_like(TOKENS, n))) for n in (0, 2))
    assert np.array_equal(same, other) == (rows != 3)
