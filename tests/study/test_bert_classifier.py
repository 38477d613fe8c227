"""A classifier of labelled rows that starts from a tiny BERT, in the three arms of docs/designs.md."""

import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers as hf
import torch
import transformers
from tests.labelled_files import BAD, GOOD, OTHER, labelled_rows, write_json_lines
from tokenizers import models, pre_tokenizers, processors

import taetpu

PAGE = (Path(__file__).parents[2] / "docs/designs.md").read_text()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER, *map(str, range(120))]


@pytest.fixture
def bert(tmp_path):
    """A folder with a tiny BERT of Hugging Face, labelled rows, and the study of the page."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "tiny-bert")
    inner = hf.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    inner.save(str(tmp_path / "tiny-bert" / "tokenizer.json"))
    write_json_lines(tmp_path / "labelled.jsonl", labelled_rows(120))
    (tmp_path / "s.yaml").write_text(re.search(r"^```\n(study: classifier\n.*?)^```$", PAGE, re.M | re.S)[1])
    return tmp_path


@pytest.mark.slow
def test_a_classifier_from_bert_is_judged_by_weighted_f1(bert, tmp_path):
    outcome = taetpu.run(bert / "s.yaml", root=str(tmp_path / "root"))
    assert not outcome.failed
    means = {arm["name"]: arm["mean"] for arm in outcome.results["arms"]}
    assert means.keys() == {"baseline", "scratch", "head-only"}
    assert means["baseline"] > 0.5
    assert all(0 <= mean <= 1 for mean in means.values())
    page = next((tmp_path / "root").rglob("report.md")).read_text()
    assert "val/weighted" in page
    opened = taetpu.open_run("classifier/head-only/0", root=tmp_path / "root", data_folder=bert)
    assert opened.interface.labels == ("even", "neg", "pos")
    split = opened.data.evaluation("val")
    assert opened.decode(split.tokens[0, : split.lengths[0]]).split()[0] == "[CLS]"
    outputs = opened(split.tokens[0, : split.lengths[0]]).logits[0, 0]
    assert outputs.shape == (3,)
    stored = taetpu.open_run("classifier/baseline/0", root=tmp_path / "root", data_folder=bert).weights()
    kept = opened.weights()
    assert any((np.asarray(kept[name]) != stored[name]).any() for name in kept if name.startswith("layers"))
