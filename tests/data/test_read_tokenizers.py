"""Tokenizers that are read: tokens equal to those of the library that owns the format, special tokens, bad files."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from tests.tokenizer_files import END, fill_ranks, ranks_of, train_bpe, train_pieces, write_ranks, write_tokenizer

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.text import TextTask
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.characters import ByteConfig, CharConfig
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.data.tokenizers.ranks import PATTERNS, SPECIAL

TEXT = (
    "To be, or not to be:\n\n  that's the question -- 1234 times. \u00e9t\u00e9 \u4f60\u597d \U0001f600 we'll see\n" * 3
)
INNER = train_bpe(TEXT)
RANKS = ranks_of(INNER)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
words = st.lists(st.sampled_from([*TEXT.split(" "), " ", "\n", "\t", "<s>", END, "<0x41>", "\u2581"]), max_size=12)
texts = any_text | words.map(" ".join) | words.map("".join)


def read(folder: Path, config: dict[str, Any], text: str = TEXT) -> Tokenizer:
    return build_component("tokenizer", config).prepare(text, folder)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tokenizers")
    (made / "tokenizer.json").write_text(INNER.to_str())
    write_ranks(made / "ranks.tiktoken", RANKS)
    (made / "tokenizer.model").write_bytes(train_pieces(TEXT))
    return made


CONFIGS = {
    "file": {"kind": "file", "path": "tokenizer.json"},
    "tiktoken": {"kind": "tiktoken", "path": "ranks.tiktoken", "pattern": "cl100k", "special": {END: 400}},
    "sentencepiece": {"kind": "sentencepiece", "path": "tokenizer.model"},
}


# --- equal tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_are_those_of_tiktoken(folder, pattern):
    special = {END: 300, "<|pad|>": 310}  # with numbers that no token has between them
    theirs = tiktoken.Encoding("x", pat_str=PATTERNS[pattern], mergeable_ranks=RANKS, special_tokens=special)
    config = {**CONFIGS["tiktoken"], "pattern": pattern, "special": special}
    ours, parsing = read(folder, config), read(folder, {**config, "parse_special": True})
    assert ours.vocab_size == theirs.n_vocab == 311

    @settings(deadline=None, max_examples=100)
    @given(text=texts)
    @example(f"\u017f'\u017f 12345 {END}\r\n \u00a0\u2028x<|pad|>")
    def check(text):
        assert ours.encode(text).tolist() == theirs.encode_ordinary(text)
        assert parsing.encode(text).tolist() == theirs.encode(text, allowed_special="all")
        assert ours.decode(ours.encode(text)) == parsing.decode(parsing.encode(text)) == text

    check()


def test_a_token_that_no_merges_lead_to_is_found_only_as_a_whole_word(tmp_path):
    ranks = {**{bytes([byte]): byte for byte in range(256)}, b"xyz": 256, b"ab": 257, b"aba": 258, b"ba": 259}
    write_ranks(tmp_path / "ranks.tiktoken", ranks)
    theirs = tiktoken.Encoding("x", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={})
    ours = read(tmp_path, {**CONFIGS["tiktoken"], "pattern": "gpt2", "special": {}})
    for text in ("xyz", "axyz", "xyz xyzxyz", "ababab", "baba", "aba ab", "bab"):
        assert ours.encode(text).tolist() == theirs.encode_ordinary(text)


def test_the_names_of_patterns_bring_special_tokens(tmp_path):
    config = {"kind": "tiktoken", "path": "ranks.tiktoken", "pattern": "gpt2"}
    write_ranks(tmp_path / "ranks.tiktoken", RANKS)
    with pytest.raises(UserError) as caught:
        read(tmp_path, config)
    assert caught.value.path[-1] == "special"
    assert f"{len(RANKS)}}}" in caught.value.remedy
    write_ranks(tmp_path / "ranks.tiktoken", fill_ranks(RANKS, 50256))
    named = read(tmp_path, config)
    assert named.number(END) == SPECIAL["gpt2"][END] == 50256
    assert named.token(50256) == END
    regular = read(tmp_path, {"kind": "tiktoken", "path": "ranks.tiktoken", "pattern": r"\S+|\s+"})
    assert regular.number(END) is None


@pytest.mark.parametrize(
    "trained",
    [
        {},
        {"model_type": "unigram"},
        {"model_type": "unigram", "byte_fallback": False, "user_defined_symbols": ["<sep>", "be:"]},
        {"user_defined_symbols": ["<sep>", "be:"], "add_dummy_prefix": False},
        {"model_type": "unigram", "remove_extra_whitespaces": True},
    ],
    ids=str,
)
def test_tokens_are_those_of_sentencepiece(tmp_path, trained):
    (tmp_path / "tokenizer.model").write_bytes(data := train_pieces(TEXT, **trained))
    ours, theirs = read(tmp_path, CONFIGS["sentencepiece"]), SentencePieceProcessor(model_proto=data)
    assert ours.vocab_size == theirs.vocab_size()
    assert ours.number("</s>") == theirs.eos_id()

    def fused(ids):  # neighbouring unknown tokens as one
        return [id_ for i, id_ in enumerate(ids) if i == 0 or {id_, ids[i - 1]} != {theirs.unk_id()}]

    @settings(deadline=None, max_examples=100)
    @given(text=texts)
    @example("a<s>b</s><unk><sep>c be: <0x41> <sep>  ")
    def check(text):
        text = text.replace("\0", "")  # of which SentencePiece ends the text
        ids = ours.encode(text)
        assert fused(ids) == fused(theirs.encode(text))
        if ours.escape_bits(text) == 0:
            assert ours.decode(ids) == text

    check()
    assert ours.escape_bits("question") == 0


def test_bits_per_byte_are_not_measured_where_normalization_changes_the_text(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train_pieces(TEXT, normalization_rule_name="nmt_nfkc_cf"))
    ours = read(tmp_path, CONFIGS["sentencepiece"], "that's the question")
    assert ours.escape_bits("question") == 0
    assert ours.escape_bits("Question") is None
    assert ours.escape_bits("\uff11") is None


def test_a_sentencepiece_model_that_would_be_read_differently_is_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train_pieces(TEXT, normalization_rule_name="nfkc"))
    with pytest.raises(UserError, match=r"tokenizer\.model") as caught:
        read(tmp_path, CONFIGS["sentencepiece"], "to \u1100\u1161 be")  # the library does not compose these letters
    assert "kind: file" in caught.value.remedy
    (tmp_path / "tokenizer.model").write_bytes(train_pieces(TEXT, model_type="char"))
    with pytest.raises(UserError, match="CHAR") as caught:
        read(tmp_path, CONFIGS["sentencepiece"])
    assert caught.value.path == ("path",)


@pytest.mark.parametrize("config", [{"kind": "char"}, {"kind": "byte"}, "json"], ids=str)
def test_a_file_is_read_as_the_library_reads_it(folder, tmp_path, config):
    stored = INNER.to_str() if config == "json" else build_component("tokenizer", config).train(TEXT).to_json()
    (tmp_path / "tokenizer.json").write_text(stored, encoding="utf-8-sig")
    ours, library = read(tmp_path, CONFIGS["file"]), hf.Tokenizer.from_str(stored)
    library.encode_special_tokens = True
    assert ours.encode(TEXT + END).tolist() == library.encode(TEXT + END).ids
    assert ours.to_json() == load_tokenizer(stored).to_json()


@pytest.mark.parametrize("kind", ["file", "tiktoken"])
@settings(deadline=None, max_examples=50)
@given(text=texts)
def test_byte_level_kinds_restore_any_text(folder, kind, text):
    tokenizer = read(folder, CONFIGS[kind])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.escape_bits(text) == 0


# --- special tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "tiktoken"])
def test_special_tokens_in_the_text_are_text_unless_asked(folder, kind):
    text = f"to be{END}or"
    plain, parsing = read(folder, CONFIGS[kind]), read(folder, {**CONFIGS[kind], "parse_special": True})
    assert plain.number(END) not in plain.encode(text)
    assert plain.unit != parsing.unit  # losses per token are not comparable
    assert list(parsing.encode(text)).count(parsing.number(END)) == 1
    assert plain.decode(plain.encode(text)) == parsing.decode(parsing.encode(text)) == text
    assert load_tokenizer(plain.to_json()).encode(text).tolist() == parsing.encode(text).tolist()  # in prompts


def test_numbers_without_a_token_count_in_the_size_of_the_vocabulary(tmp_path):
    stored = json.loads(INNER.to_str())
    stored["model"]["vocab"]["zz"] = 350
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    tokenizer = read(tmp_path, CONFIGS["file"])
    assert tokenizer.vocab_size == 351
    assert tokenizer.token(345) is None
    assert read(tmp_path, {**CONFIGS["file"], "crop": True}, "to be").vocab_size < 300


# --- crop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("text", ["to be", f"that's{END} question\n 12\u00e9"])
def test_a_cropped_tokenizer_encodes_the_training_text_as_before(folder, kind, text):
    whole, cropped = read(folder, CONFIGS[kind], text), read(folder, {**CONFIGS[kind], "crop": True}, text)
    assert cropped.vocab_size == len(cropped.kept) < whole.vocab_size
    assert cropped.kept[cropped.encode(text)].tolist() == whole.encode(text).tolist()
    assert [cropped.token(i) for i in range(cropped.vocab_size)] == [whole.token(int(i)) for i in cropped.kept]
    end = "</s>" if kind == "sentencepiece" else END
    assert cropped.token(cropped.number(end)) == end
    again = load_tokenizer(cropped.to_json())
    again.set_parse_special(False)
    for other in (TEXT, "\u4f60 unseen words \U0001f600"):
        assert cropped.decode(cropped.encode(other)) == other
        assert again.encode(other).tolist() == cropped.encode(other).tolist()
    assert cropped.origin["cropped from"] == whole.vocab_size


def test_cropping_renumbers_the_tokens_that_are_added_to_every_text(tmp_path):
    inner = train_bpe(TEXT)
    inner.add_special_tokens(["<bos>"])
    single, number = "<bos> $A", inner.token_to_id("<bos>")
    inner.post_processor = hf.processors.TemplateProcessing(single=single, special_tokens=[("<bos>", number)])
    inner.save(str(tmp_path / "tokenizer.json"))
    cropped = read(tmp_path, {**CONFIGS["file"], "crop": True}, "to be")
    assert cropped.start_tokens.tolist() == [cropped.library.token_to_id("<bos>")] == [cropped.encode("to be")[0]]
    assert cropped.kept[cropped.start_tokens[0]] == number


# --- in a task -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_data_is_identified_by_the_content_of_the_file(folder, tmp_path, kind):
    (tmp_path / "a.txt").write_text(TEXT)
    for file in folder.iterdir():
        for copy in (tmp_path, tmp_path / "other"):
            copy.mkdir(exist_ok=True)
            (copy / file.name).write_bytes(file.read_bytes())

    def source(path):
        config = {**CONFIGS[kind], "path": path}
        tokenizer = build_component("tokenizer", config)
        return TextTask(source="a.txt", seq_len=8, val=0.2, tokenizer=tokenizer).prepare(tmp_path)

    path = CONFIGS[kind]["path"]
    first, second = source(path), source(f"other/{path}")
    assert first.fingerprint == second.fingerprint
    assert first.facts["tokenizer"] == second.facts["tokenizer"]
    assert len(first.facts["tokenizer"]["sha256"]) == 64
    assert first.evaluation("val").num_bytes == len(TEXT.encode()) - len(TEXT[: int(len(TEXT) * 0.8)].encode())
    write_tokenizer(tmp_path / "other" / path, "to be " * 9)
    assert source(f"other/{path}").fingerprint != first.fingerprint


# --- bad files -------------------------------------------------------------------------------------------------------

GOOD = INNER.to_str().encode()
BAD = {
    "truncated": ("file", GOOD[: len(GOOD) // 2], "line 1 column", "again"),
    "ranks as json": ("file", b"IQ== 0\nIg== 1\n", "ranks", "kind: tiktoken"),
    "vocab.json": ("file", b'{"a": 0, "b": 1}', "tokenizer.json", "tokenizer.json"),
    "pickle": ("file", pickle.dumps({"a": 1}), "pickle", "tiktoken"),
    "gzip": ("file", gzip.compress(GOOD), "compressed", "Unpack"),
    "utf-16": ("file", GOOD.decode().encode("utf-16"), "UTF-16", "UTF-8"),
    "latin-1": ("file", GOOD[:-2] + b"\xe9}", "UTF-8", "again"),
    "nothing": ("file", b" \n", "empty", "again"),
    "no tokens": ("file", json.dumps({**json.loads(GOOD), "added_tokens": [], "model": {**json.loads(GOOD)["model"],
                  "vocab": {}, "merges": []}}).encode(), "no tokens", "again"),
    "json as ranks": ("tiktoken", GOOD, "tokenizer.json", "kind: file"),
    "no number": ("tiktoken", b"IQ== 0\nIg==\n", "line 2 .*Ig==", "again"),
    "no base64": ("tiktoken", b"IQ== 0\nI?== 1\n", "line 2 ", "again"),
    "twice": ("tiktoken", b"IQ== 0\nIQ== 1\n", "line 2 ", "again"),
    "one number": ("tiktoken", b"IQ== 0\nIg== 0\n", "same number", "again"),
    "bytes": ("tiktoken", b"IQ== 0\nIg== 1\n", "254 bytes .*0x00", "again"),
    "ranks as model": ("sentencepiece", b"IQ== 0\nIg== 1\n", "ranks", "kind: tiktoken"),
    "damaged model": ("sentencepiece", b"\n\x0e\n\x05<unk>\x15\x00\x00", "SentencePiece", "again"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "problem", "remedy"), BAD.values(), ids=BAD)
def test_bad_files_are_refused(tmp_path, kind, data, problem, remedy):
    config = {**CONFIGS[kind], "path": "damaged"}
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(UserError, match=problem) as caught:
        read(tmp_path, config)
    assert caught.value.path == ("path",)
    assert str(tmp_path / "damaged") in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        ({"path": "nowhere"}, "path", "nowhere"),
        ({"path": "."}, "path", "folder"),
        ({"pattern": "(a"}, "pattern", r"'\(a'"),
        ({"special": {END: 5}}, "special", "number 5"),
        ({"special": {"e": 400}}, "special", "'e'"),
        ({"special": {"word": 400}}, "special", "'word'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder, change, path, problem):
    with pytest.raises(UserError, match=problem) as caught:
        read(folder, {**CONFIGS["tiktoken"], **change})
    assert caught.value.path == (path,)
    assert caught.value.remedy


def test_the_folder_of_a_model_is_refused_with_the_name_of_the_file(folder):
    with pytest.raises(UserError) as caught:
        read(folder.parent, {"kind": "file", "path": folder.name})
    assert f"{folder.name}/tokenizer.json" in caught.value.remedy


@pytest.mark.parametrize("library", ["sentencepiece", "huggingface_hub"])
def test_without_the_extra(folder, monkeypatch, library):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    config = {"kind": "hub", "name": "their/model"} if library == "huggingface_hub" else CONFIGS["sentencepiece"]
    with pytest.raises(UserError, match=library) as caught:
        read(folder, config)
    assert "pip install 'taetpu[" in caught.value.remedy


def test_char_and_byte_ignore_the_folder(tmp_path):
    for config in (CharConfig(), ByteConfig()):
        assert np.array_equal(config.prepare("abc", tmp_path).encode("abc"), config.train("abc").encode("abc"))
