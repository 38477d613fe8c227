"""`taetpu model import` and `export`: what is printed and written, and mistakes."""

import json

import numpy as np
import pytest
import torch
import transformers
from tests.interop.cases import TOKENS, VOCAB, forward, imported, their_logits, theirs
from tests.suites import by_default

import taetpu as api
from taetpu.cli.model import short_model
from taetpu.core.config_parsing import load_config
from taetpu.interop.huggingface import import_config
from taetpu.nn.lm import ModelConfig
from taetpu.store.documents import from_yaml, to_yaml


@pytest.fixture
def folder(here):
    """A folder with a model of transformers, beside the working folder's files."""
    theirs("gemma3").save_pretrained(here / "models" / "tiny")
    return here / "models" / "tiny"


@pytest.mark.slow
def test_a_folder_is_imported(taetpu, here, folder):
    done = taetpu("model", "import", folder)
    assert (done.code, done.err) == (0, "")
    assert "family: gemma3_text (Gemma 3)\nparameters: 7,332\n" in done.out
    assert f"vocabulary: {VOCAB}, tokenizer: none\nsequence length: 12\n" in done.out
    assert "\nwrote tiny\n" in done.out
    assert 'lens sample tiny --prompt "1 2 3"\n' in done.out
    assert done.out.endswith("{start: tiny}\n")
    printed = from_yaml(done.out[done.out.index("model:") : done.out.index("\nwrote")].encode(), "printed")["model"]
    opened = api.open_run(here / "tiny")
    assert load_config(ModelConfig, printed).resolve() == opened.config == imported("gemma3")[0].resolve()
    np.testing.assert_array_equal(forward(opened.model, TOKENS), forward(imported("gemma3")[1], TOKENS))


@pytest.mark.slow
def test_an_import_as_json(taetpu, here, folder):
    found = taetpu("model", "import", folder, "-o", "out", "--json").json()
    assert (found["family"], found["parameters"], found["folder"]) == (
        "gemma3_text",
        theirs("gemma3").num_parameters(),
        "out",
    )
    assert found["model"]["mixer"]["mask"] == {"kind": "window", "width": 3, "pattern": "SL", "last": False}


@pytest.mark.parametrize("case", by_default(["gpt2", "neox", "qwen2", "gemma2", "gemma3", "gpt-oss"], "gpt2", "gemma3"))
def test_the_printed_model_is_the_imported_one(case):
    config = import_config(theirs(case).config.to_dict())
    data = from_yaml(to_yaml({"model": short_model(config)}), "printed")["model"]
    assert load_config(ModelConfig, data).resolve() == config.resolve()


@pytest.mark.slow
def test_a_trained_model_is_exported(taetpu, here, trained):
    root, _ = trained
    done = taetpu("model", "export", "small/baseline/0", "-o", "out", "--root", root)
    assert (done.code, done.out) == (0, "wrote out (LlamaForCausalLM)\n"), done.err
    hf = transformers.AutoModelForCausalLM.from_pretrained(here / "out", attn_implementation="eager").eval()
    opened = api.open_run("small/baseline/0", root=root)
    tokens = np.arange(16)[None] % opened.vocab_size
    with torch.no_grad():
        expected = hf(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(opened(tokens).logits, expected, atol=5e-5)
    assert hf.config.max_position_embeddings == opened.seq_len
    again = taetpu("model", "export", "small/baseline/0", "-o", "out", "--root", root)
    assert again.code == 2
    assert "it contains config.json" in again.err
    assert "where:  out\n" in again.err


@pytest.mark.slow
def test_an_exported_model_is_imported_again(taetpu, here, folder):
    assert taetpu("model", "export", folder, "-o", "out").out == "wrote out (Gemma3ForCausalLM)\n"
    assert taetpu("model", "import", "out", "-o", "again").code == 0
    hf = transformers.AutoModelForCausalLM.from_pretrained(here / "out", attn_implementation="eager").eval()
    np.testing.assert_allclose(their_logits(hf), their_logits(theirs("gemma3")), atol=1e-5)


MISTAKES = {
    "no folder": (("import", "./nothing"), "no such folder\n  where:  ./nothing\n  remedy: Name a folder"),
    "no config": (("import", "empty", "-o", "out"), "no such file\n  where:  empty/config.json\n  remedy: Use a "),
    "a full folder": (("import", "models/tiny", "-o", "models"), "not empty: it contains tiny\n  where:  models\n"),
    "a revision": (("import", "models/tiny", "--revision", "a"), "hub, but models/tiny is a folder"),
    "unknown family": (("import", "other", "-o", "out"),
                       "model type 'mamba9' is not supported\n  where:  other/config.json at model_type\n"),
    "a type": (("export", "models/tiny", "-o", "out", "--family", "gemma4"), "model type 'gemma4' is not supported"),
    "no type": (("export", "models/tiny", "-o", "out", "--family", "llama"), "llama does not support"),
    "no run": (("export", "nothing/here/0", "-o", "out"), "no study 'nothing'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(taetpu, here, folder, contents, mistake):
    arguments, text = MISTAKES[mistake]
    (here / "empty").mkdir()
    (here / "other").mkdir()
    (here / "other" / "config.json").write_text(json.dumps({"model_type": "mamba9"}))
    before = contents(here)
    done = taetpu("model", *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert contents(here) == before


def test_a_name_of_the_hub_without_a_network(taetpu, here, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda _: None)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    done = taetpu("model", "import", "their/model")
    assert done.code == 2
    assert "hub cannot be" in done.err
    assert list(here.iterdir()) == [here / "s.yaml"]
