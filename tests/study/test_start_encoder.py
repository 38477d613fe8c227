"""A BERT of transformers is the start of a masked language model and of a classifier, which transformers reads."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tests.interop.cases import BERT, their_logits

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import UserError
from taetpu.study.loading import load_study
from taetpu.train.model_cost import named_shapes

pytestmark = pytest.mark.slow

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS), "the", "cat", "sat"]
MASKED = """\
study: masked
base:
  model: {start: bert}
  task: {kind: text, source: corpus.txt, seq_len: 12, objective: masked-lm}
  train: {steps: 2, batch_size: 4, optimizer: {kind: adamw, lr: 1e-9}, sample: none}
seeds: 1
"""
CLASSES = """\
study: classes
plugins: [first_group.py]
base:
  task: {kind: first-group, seq_len: 12}
  model: {start: letters, readout: pooler, embedding: {kind: untied, bias: true}}
  train: {steps: 3, batch_size: 8, optimizer: {kind: adamw, lr: 1e-3}}
seeds: 1
arms:
  head-of-tokens: {model.readout: {kind: dense, norm: {kind: layer, eps: 0.01}}}
"""


def write_bert(folder, vocab_size):
    """Write a BERT with random parameters, also of biases and norms."""
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**{**BERT, "vocab_size": vocab_size})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A folder with a BERT that has a tokenizer, and with a finished study that starts from it; and the BERT."""
    folder = tmp_path_factory.mktemp("masked")
    model = write_bert(folder / "bert", len(VOCABULARY))
    tokenizer = transformers.BertTokenizerFast(vocab={name: i for i, name in enumerate(VOCABULARY)})
    tokenizer.save_pretrained(folder / "bert")
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "ab", "cab"], (200, 12))
    (folder / "corpus.txt").write_text("\n\n".join(map(" ".join, words)))
    (folder / "masked.yaml").write_text(MASKED)
    outcome = taetpu.run(folder / "masked.yaml", root=str(folder / "runs"))
    assert not outcome.failed
    return folder, model


def test_the_loss_of_masked_tokens_is_that_of_transformers(masked):
    folder, model = masked
    opened = taetpu.open_run("masked/baseline/0", root=folder / "runs", data_folder=folder)
    split = opened.data.evaluation("val")
    losses = torch.nn.functional.cross_entropy(
        torch.tensor(their_logits(model, split.tokens)).transpose(1, 2),
        torch.tensor(split.targets, dtype=torch.long),
        reduction="none",
    ).numpy()
    expected = (losses * split.weights).sum() / split.weights.sum()
    assert opened.result["metrics"]["val/loss"] == pytest.approx(expected, abs=1e-4)
    facts = opened.result["environment"]["start"]
    assert (facts["drawn"], facts["unused"], facts["outputs"]) == ([], [], [])


def test_an_export_fills_masks_in_transformers(masked, tmp_path):
    folder, model = masked
    opened = taetpu.open_run("masked/baseline/0", root=folder / "runs")
    assert app(["model", "export", str(opened.run.where), "-o", str(tmp_path / "out")], standalone_mode=False) is None
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.mask_token, tokenizer.cls_token, tokenizer.sep_token) == ("[MASK]", "[CLS]", "[SEP]")
    text = "the cat [MASK] ab"
    ids = np.array([tokenizer(text).input_ids])
    np.testing.assert_array_equal(ids, opened.encode(text, multiple=1).ids)
    np.testing.assert_allclose(opened(ids).logits, their_logits(again, ids), atol=5e-5)
    best = transformers.pipeline("fill-mask", model=again, tokenizer=tokenizer)(text)[0]
    assert best["token"] == int(their_logits(model, ids)[0, 3].argmax())


def test_views_of_an_encoder(masked, capsys):
    folder, _ = masked
    bert = str(folder / "bert")

    def show(*arguments):
        app(["lens", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    app(["model", "import", bert, "-o", str(folder / "imported")], standalone_mode=False)
    assert "logit-lens" in capsys.readouterr().out
    assert show("logit-lens", bert, "--text", "the cat").startswith("at ")
    assert show("attention", str(folder / "imported"), "--text", "the cat")
    for refused in (["sample", bert, "--prompt", "the"], ["perplexity", bert, "--text", "the cat"],
                    ["attribution", bert, "--text", "the cat"]):  # fmt: skip
        with pytest.raises(UserError) as caught:
            show(*refused)
        assert caught.value.remedy


def test_a_classifier_draws_its_head(tmp_path):
    write_bert(tmp_path / "letters", 12)
    shutil.copy(Path(__file__).parent / "tasks" / "first_group.py", tmp_path)
    (tmp_path / "classes.yaml").write_text(CLASSES)
    study = load_study(tmp_path / "classes.yaml")
    facts = []
    for arm in study.arms:
        shapes = named_shapes(arm.config.model, study.source(arm).interface, study.source(arm).seq_len)
        facts.append(study.start(arm, 0).facts(shapes))
    pooled, dense = facts
    outputs = {"embedding.unembed", "embedding.bias"}
    assert {*pooled["drawn"], *pooled["outputs"]} == {"readout.pooler", "readout.pooler_bias", *outputs}
    head = {f"readout.{name}" for name in ("dense", "dense_bias", "norm.weight", "norm.bias")}
    assert head <= {*pooled["unused"]}
    assert {*dense["drawn"], *dense["outputs"]} == outputs
    assert dense["loaded"] == pooled["loaded"] + len(head)
    outcome = taetpu.run(tmp_path / "classes.yaml", root=str(tmp_path / "runs"))
    assert not outcome.failed
    opened = taetpu.open_run("classes/baseline/0", root=tmp_path / "runs", plugins=[tmp_path / "first_group.py"])
    app(["model", "export", str(opened.run.where), "-o", str(tmp_path / "out")], standalone_mode=False)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokens = np.random.default_rng(1).integers(0, 12, (3, 12))
    np.testing.assert_allclose(opened(tokens).logits[:, 0], their_logits(again, tokens), atol=5e-5)
    assert opened.interface.outputs == again.config.num_labels == 3
