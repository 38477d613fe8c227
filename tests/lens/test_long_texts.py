"""Texts that would need too much memory are refused before anything is computed, with the longest possible one."""

from dataclasses import replace

import pytest
from tests.lens.cases import ATTENTION

import taetpu
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.lens.beam import beam_search
from taetpu.lens.generate import generate
from taetpu.lens.norms import residual_norms
from taetpu.lens.perplexity import perplexity

LONG = [1] * 30_000
READS = {
    "norms": residual_norms, "embed": taetpu.embed, "logit lens": taetpu.logit_lens, "attribution": taetpu.attribution,
    "attention": taetpu.attention_maps, "samples": lambda opened, ids: generate(opened, [ids], max_tokens=1),
    "beams": beam_search, "calls": lambda opened, ids: opened([ids]),
    "windows": lambda opened, ids: perplexity(opened, ids, window=20_000),
    "probe": lambda opened, ids: taetpu.probe(opened, [ids, [2, 3]], ["a", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_each_view_refuses_a_text_whose_attention_weights_need_too_much_memory(opened, read):
    """Two heads of n tokens have 2 n^2 weights, and 2^28 fit."""
    with pytest.raises(UserError, match=r"attention weights in \d heads, and at most 268,435,456 fit") as caught:
        READS[read](opened, LONG)
    assert caught.value.path == ("input",)
    assert f"at most {8_192 if read == 'attention' else 11_585:,} tokens" in str(caught.value.remedy)


def test_norms_need_no_logits(opened):
    wide = replace(opened, interface=Interface(2**28))
    (found,) = residual_norms(wide, [1, 2])
    assert found.norms.tolist() == residual_norms(opened, [1, 2])[0].norms.tolist()
    with pytest.raises(UserError, match="logits"):
        taetpu.logit_lens(wide, [1, 2])


def test_logits_of_all_positions_are_limited_and_mixers_without_weights_are_not(opened, of):
    recurrent = of({"mixer": "lstm"})
    recurrent.check_length(2**20)
    wide = replace(recurrent, interface=Interface(2**16))
    wide.check_length(2**12, logits=True)
    with pytest.raises(UserError, match=r"a text of 4,097 tokens has 268,500,992 logits") as caught:
        wide.check_length(2**12 + 1, logits=True)
    assert "at most 4,096 tokens" in str(caught.value.remedy)
    attending = of({"mixer": ATTENTION})
    attending.check_length(4_000, 8)
    with pytest.raises(UserError, match="attention weights in 2 heads"):
        attending.check_length(4_000, 9)
