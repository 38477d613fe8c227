"""Every setting of published configs is decided: used, without effect, of training alone, or refused."""

import numpy as np
import pytest
import transformers
from tests.interop.cases import ENCODERS, MAIN, arrays, forward, their_logits, theirs
from tests.interop.cases import TOKENS as INPUTS
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.interop.families import FAMILIES
from taetpu.interop.families.base import HARMLESS
from taetpu.interop.huggingface import from_huggingface, import_config

EVERY = {
    "_name_or_path": "x", "_num_labels": 2, "attention_dropout": 0.1, "attn_implementation": "sdpa",
    "bad_words_ids": [[1]], "bos_token": "<s>", "finetuning_task": "lm", "gradient_checkpointing": True,
    "hidden_dropout_prob": 0.1, "id2label": {"0": "a", "1": "b"}, "is_decoder": True, "label2id": {"a": 0, "b": 1},
    "max_new_tokens": 9, "model_max_length": 99, "n_special": 0, "num_labels": 2, "output_past": True,
    "prefix": "x", "resid_pdrop": 0.0,
    "task_specific_params": {"text-generation": {"do_sample": True}}, "temperature": 0.6, "tf_legacy_loss": True,
    "torch_dtype": "float16", "transformers.js_config": {"dtype": "q4"}, "unsloth_fixed": True,
    "unsloth_version": "2025.1.1", "use_bfloat16": True, "use_flash_attention_2": True,
}  # fmt: skip
"""Settings of published configs that none of the classes reads."""
PUBLISHED = {
    "gpt2": {
        "predict_special_tokens": True, "n_ctx": 12, "hidden_size": 16, "embd_pdrop": 0.1, "attn_pdrop": 0.2,
        "summary_type": "cls_index", "summary_first_dropout": 0.1, "reorder_and_upcast_attn": True},
    "gpt_neox": {"classifier_dropout": 0.1, "attention_probs_dropout_prob": 0, "custom_pipelines": {"a": 1}},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 2},
    "qwen2": {"dual_chunk_attention_config": {"chunk_size": 8}},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gemma3_text": {"_sliding_window_pattern": 6, "hidden_act": "gelu"},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096, "num_experts": 5, "output_router_logits": True},
}  # fmt: skip
"""Settings of published configs that the class of one architecture has, and that change no logits."""
REFUSED = {
    "all": {"attention_chunk_size": 4, "per_layer_config": {"0": {}}, "is_encoder_decoder": True, "is_causal": False,
            "pruned_heads": {"0": [1]}, "logit_scale": 0.5, "residual_multiplier": 0.2, "scale": 0},
    "gpt2": {"scale_attn_weights": False, "add_cross_attention": True},
    "mistral": {"layer_types": ["full_attention"] * 3},
    "qwen2": {"use_mrope": True},
    "gemma3_text": {"use_bidirectional_attention": True, "attn_logit_softcapping": 5.0},
    "bert": {"position_embedding_type": "relative_key_query", "is_decoder": True},
    "modernbert": {"rope_scaling": {"type": "linear", "factor": 2.0}, "sliding_window": 4},
}  # fmt: skip
"""Settings that could change the results."""


@pytest.mark.parametrize("case", MAIN)
def test_every_setting_of_a_class_is_decided(case):
    family = FAMILIES[theirs(case).config.model_type]
    config = theirs(case).config.__class__()
    names = {*config.to_dict(), *config.attribute_map, *transformers.GenerationConfig._get_default_generation_params()}
    decided = {*family.model_fields, *family.fixed, *family.harmless, *family.aliases, *HARMLESS}
    assert names - decided - {"is_encoder_decoder"} == set()  # false, or refused


def published(case):
    """Return settings of published configs of the architecture of a case."""
    settings = {**EVERY, **PUBLISHED.get(theirs(case).config.model_type, {})}
    return {**settings, "is_decoder": False} if case in ENCODERS else settings


@pytest.mark.parametrize("case", MAIN)
def test_published_settings_are_read(case):
    config = theirs(case).config.to_dict()
    changed = config | published(case)
    assert import_config(changed) == import_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default(MAIN))
def test_published_settings_change_no_logits_of_transformers(case):
    hf = theirs(case)
    config = hf.config.to_dict()
    more = published(case)
    dropped = ("attention_dropout", "attn_implementation", "torch_dtype", "use_flash_attention_2")
    changed = hf.config.__class__.from_dict(config | {name: more[name] for name in more if name not in dropped})
    changed._attn_implementation = "eager"
    again = type(hf)(changed).eval()
    again.load_state_dict(hf.state_dict())
    np.testing.assert_allclose(their_logits(again), their_logits(hf), atol=1e-5)


@pytest.mark.parametrize("case", MAIN)
def test_settings_that_could_act_are_refused(case):
    config = theirs(case).config.to_dict()
    values = REFUSED["all"] | {"is_causal": case in ENCODERS} | REFUSED.get(config["model_type"], {})
    for name in values.keys() - FAMILIES[config["model_type"]].model_fields.keys():
        value = values[name]
        with pytest.raises(UserError, match=rf"{name}=.* is not ") as refused:
            import_config(config | {name: value})
        assert refused.value.path == (name,)
        assert refused.value.remedy


@pytest.mark.parametrize(("name", "value"), [("resid_pdrop", 0.2), ("attn_pdrop", 0.2)])
def test_the_dropout_rate_of_gpt2_is_that_of_branches(gpt2, name, value):
    assert import_config(gpt2[0] | {name: value}).dropout == (value if name == "resid_pdrop" else 0.0)


def test_both_activations_of_gemma():
    hf = theirs("gemma")
    config = hf.config.to_dict()
    for same in ({"hidden_act": "gelu"}, {"hidden_activation": "gelu"}, {"hidden_activation": "gelu_pytorch_tanh"}):
        model = from_huggingface(config | same, arrays(hf))[1]
        np.testing.assert_allclose(forward(model, INPUTS), their_logits(hf), atol=5e-5)
    with pytest.raises(UserError, match=r"'gelu_pytorch_tanh' and .*'relu' are different\D*\n  where:  hidden_activat"):
        import_config(config | {"hidden_activation": "relu"})


def test_tokens_of_a_multimodal_model_are_read(gemma3):
    from taetpu.interop.huggingface import import_model

    config, tensors = gemma3
    outer = {"model_type": "gemma3", "text_config": config | {"eos_token_id": 1}, "eos_token_id": [1, 5]}
    assert import_model(outer, tensors).special_tokens == {"eos_token_id": [1, 5]}
