"""Tokens that begin and end texts are read from the files of Hugging Face, end samples, and are written again."""

import json
import shutil

import numpy as np
import pytest
import tokenizers as hf
import torch
import transformers
from tests.suites import by_default
from tokenizers import decoders, models, normalizers, processors
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import UserError
from taetpu.lens.beam import beam_search
from taetpu.lens.generate import Sampling, generate
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import read_token

BEGIN, END, OTHER = 1, 2, 3
WORDS = ("▁the", "▁cat", "cat", "▁dog")


def tokenizer() -> hf.Tokenizer:
    """A tokenizer as that of Llama 2: it begins each text with <s>, and drops the first space of a decoded text."""
    vocab = {name: i for i, name in enumerate(("<unk>", "<s>", "</s>", "<end>", "▁", *"thecadog", *WORDS))}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("c", "a"), ("ca", "t"), ("▁", "cat"), ("▁", "d"), ("▁d", "o")]
    merges.append(("▁do", "g"))
    for one, other in merges:
        vocab.setdefault(one + other, len(vocab))
    made = hf.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>", "<end>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama whose texts end at token 3, as generation_config.json states, or 2, as config.json does."""
    folder, tokens = tmp_path_factory.mktemp("special"), tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=tokens.get_vocab_size(), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, bos_token_id=BEGIN, eos_token_id=END,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.generation_config.eos_token_id = [END, OTHER]
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokens.to_str())
    return folder


@pytest.mark.slow
def test_samples_end_where_those_of_transformers_do(folder):
    opened = taetpu.open_run(folder)
    assert opened.end_tokens == (END, OTHER)
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    ended = 0
    for number in range(5, opened.vocab_size):
        prompt = torch.tensor([[BEGIN, number]])
        expected = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
        )[0, 2:].tolist()  # fmt: skip
        (found,) = generate(opened, [[BEGIN, number]], max_tokens=20, sampling=Sampling(temperature=0))
        assert [*found.tokens, *([] if found.stopped is None else [found.stopped])] == expected
        ended += found.stopped is not None
    assert 0 < ended < opened.vocab_size - 5


@pytest.mark.slow
def test_beams_end_at_each_end_token(folder):
    """Beams end before either of both end tokens, which a search with another end token passes."""
    opened = taetpu.open_run(folder)
    whole = beam_search(opened, "the cat", beams=30, max_tokens=2, end=opened.vocab_size - 1)
    found = beam_search(opened, "the cat", beams=30, max_tokens=2)
    assert not any({END, OTHER} & set(beam.tokens.tolist()) for beam in found)
    assert 0 < sum(len(beam.tokens) < 2 for beam in found) < len(found)
    assert any({END, OTHER} & set(beam.tokens.tolist()) for beam in whole)


def test_import_and_export_keep_them(folder, tmp_path):
    run = CliRunner().invoke
    assert run(app, ["model", "import", str(folder), "-o", str(tmp_path / "ours")]).exit_code == 0
    assert taetpu.open_run(tmp_path / "ours").end_tokens == (END, OTHER)
    assert run(app, ["model", "export", str(tmp_path / "ours"), "-o", str(tmp_path / "theirs")]).exit_code == 0
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (settings["bos_token_id"], settings["eos_token_id"]) == (BEGIN, [END, OTHER])
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert (again.bos_token, again.eos_token) == ("<s>", "</s>")


def test_a_continuation_keeps_its_first_space(folder):
    opened = taetpu.open_run(folder)
    prompt, ids = opened.encode("the").of(0), opened.tokenizer.encode("the cat")
    assert opened.decode_after(prompt, ids[len(prompt) :]) == " cat"
    assert opened.token_texts(ids) == ["<s>", " the", " cat"]


def test_a_call_pads_only_to_the_longest_input(folder):
    opened = taetpu.open_run(folder)
    rows = [[BEGIN, 5, 6, 7], [BEGIN, 8]]
    out = opened(rows)
    assert out.logits.shape == (2, 4, opened.vocab_size)
    assert out.tokens.padding.tolist() == [[False] * 4, [True, True, False, False]]
    np.testing.assert_allclose(out.logits[1, 2:], opened(rows[1]).logits[0], atol=1e-5)


# --- the tokenizer and the model -------------------------------------------------------------------------------------


def opened_with(folder, tmp_path, change) -> OpenedModel:
    """Open the model with a changed tokenizer."""
    shutil.copytree(folder, tmp_path / "changed")
    tokens = tokenizer()
    change(tokens)
    (tmp_path / "changed" / "tokenizer.json").write_text(tokens.to_str())
    return taetpu.open_run(tmp_path / "changed")


FRAMES = ("<s> $A", "<s> $A </s>", "<s> <end> $A </s> </s>", "$A </s>", "$A")


@pytest.mark.parametrize("single", by_default(FRAMES, "<s> <end> $A </s> </s>", "$A"))
def test_tokens_that_are_always_there_cost_no_bits(folder, tmp_path, single):
    special = [("<s>", BEGIN), ("</s>", END), ("<end>", OTHER)]

    def change(tokens):
        tokens.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)

    opened, expected = opened_with(folder, tmp_path, change), 0.0
    texts = ["the cat", "the dog the cat"]
    for text in texts:
        ids, inner = opened.tokenizer.encode(text), opened.tokenizer.encode_plain(text)
        start = single.split().index("$A")
        (losses,) = (one.losses for one in taetpu.perplexity(opened, [ids]).texts)
        costs = np.concatenate([[np.log(opened.vocab_size)], losses])
        expected += costs[start : start + len(inner)].sum() / np.log(2)
    found = taetpu.perplexity(opened, texts)
    assert found.bits_per_byte == pytest.approx(expected / len("".join(texts)), rel=1e-5)


def test_tokens_beyond_the_rows_are_refused_where_a_text_has_them(folder, tmp_path):
    opened = opened_with(folder, tmp_path, lambda tokens: tokens.add_special_tokens(["<more>"]))
    rows = opened.vocab_size
    assert opened.tokenizer.vocab_size == rows + 1
    taetpu.perplexity(opened, "the cat")
    for use in (lambda: taetpu.perplexity(opened, "the<more>"), lambda: read_token(opened, "<more>")):
        with pytest.raises(UserError, match=rf"'<more>' \({rows}\), .* {rows} tokens"):
            use()
