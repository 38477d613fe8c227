"""Long texts are encoded in parts, and ranks give merges, as if the whole text or each token were encoded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizer_files import ranks_of, train_bpe, write_ranks

from taetpu.core.config_parsing import build_component
from taetpu.data.tokenizers import base, cutting
from taetpu.data.tokenizers.bpe import BPEConfig
from taetpu.data.tokenizers.crop import merge_steps
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.data.tokenizers.ranks import find_merges

TEXT = "It's 1234 words, and\n\n  some\t more  \r\n of them's; don't. \x1c \x85 end" * 20
PIECES = st.text(st.sampled_from("ab1' \n\r\t.,s\u00a0\x1c\x85\u3000ß!"), max_size=60)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    inner = train_bpe(TEXT, 330)
    write_ranks(folder / "ranks.tiktoken", ranks_of(inner))
    common = {"kind": "tiktoken", "path": "ranks.tiktoken", "special": {}}
    kinds = [{**common, "pattern": name} for name in cutting.PATTERNS]
    return [load_tokenizer(inner.to_str()), *(build_component("tokenizer", kind).prepare("", folder) for kind in kinds)]


@given(PIECES)
@settings(deadline=None)
def test_tokens_of_parts_are_those_of_the_whole(tokenizers, text):
    for tokenizer in tokenizers:
        assert cutting.is_divisible(tokenizer.library)
        whole = tokenizer.library.encode(text, add_special_tokens=False).ids
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cutting, "PART", 3)
            assert "".join(cutting.cut(text)) == text
            parts = [tokenizer.library.encode(part, add_special_tokens=False).ids for part in cutting.cut(text)]
        assert [number for part in parts for number in part] == whole


@pytest.mark.slow
def test_long_texts_are_encoded_in_parts(tokenizers):
    text = TEXT * (4 * cutting.PART // len(TEXT))
    assert len([*cutting.cut(text)]) > 3
    for tokenizer in tokenizers:
        assert tokenizer.encode(text).tolist() == tokenizer.library.encode(text).ids


def test_training_in_parts(monkeypatch):
    whole = BPEConfig(vocab_size=320).train(TEXT).to_json()
    monkeypatch.setattr(cutting, "PART", 10)
    assert BPEConfig(vocab_size=320).train(TEXT).to_json() == whole


def expected_merges(ranks):
    """Return the last pair that is merged when each token alone is encoded, as `find_merges` does."""
    steps = {name: merge_steps([*name], lambda a, b: ranks.get(a + b)) for name in sorted(ranks, key=ranks.get)}
    return {name: pairs[-1] for name, pairs in steps.items() if pairs and "".join(pairs[-1]) == name}


@pytest.mark.slow
@given(st.lists(st.text("abc", min_size=2, max_size=6), unique=True, max_size=14), st.randoms())
@settings(deadline=None, max_examples=500)
def test_merges_of_any_ranks(names, random):
    for order in (sorted(names, key=len), names, random.sample(names, len(names))):
        ranks = {name: rank for rank, name in enumerate([*"abc", *order])}
        assert [*find_merges(ranks).items()] == [*expected_merges(ranks).items()]


def test_merges_of_trained_ranks():
    ranks = train_bpe(TEXT + "".join(map(chr, range(300, 900))), 500).get_vocab(with_added_tokens=False)
    merges = find_merges(ranks)
    assert merges == expected_merges(ranks)
    assert len(merges) > 200


def test_number_of_characters_that_kinds_read(tmp_path):
    wanted = {"byte": 0, "char": base.SAMPLE}
    for kind, size in wanted.items():
        assert build_component("tokenizer", kind).sample == size
    for crop, size in ((False, 0), (True, base.SAMPLE)):
        assert build_component("tokenizer", {"kind": "file", "path": "a.json", "crop": crop}).sample == size
