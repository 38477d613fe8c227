"""Tokenizers of Hugging Face folders give the tokens of transformers, whichever files and settings they have."""

import json

import numpy as np
import pytest
import tokenizers as hf
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from taetpu.core.errors import UserError
from taetpu.data.tokenizers.library import LibraryTokenizer, load_tokenizer
from taetpu.interop.tokenizer_files import FLAGS, read_tokenizer, select_files

TRAINING = ["a small boat crossed the cold river, while two dogs slept near fire no. 27; nobody spoke. " * 9]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
TEXTS = (
    "a small boat",
    " two  dogs \n\n near",
    "the cold river </s> nobody<s>",
    "A Boat: \u00e9t\u00e9 e\u0301 \u4f60\u597d \U0001f600 1234 ",
    "word<sep>boat <sep> fire, x<sep>",
    "",
)


def trained(model, trainer, **parts) -> hf.Tokenizer:
    made = hf.Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(model, models.BPE) else []
    fixed = {"special_tokens": SPECIAL, "vocab_size": 340, "show_progress": False}
    made.train_from_iterator(TRAINING, trainer(**fixed, **({"initial_alphabet": alphabet} if alphabet else {})))
    return made


def byte_level(**parts) -> hf.Tokenizer:
    default = {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False), "decoder": decoders.ByteLevel()}
    return trained(models.BPE(), trainers.BpeTrainer, **(default | parts))


def pieces(scheme: str) -> hf.Tokenizer:
    """A tokenizer as that of Llama: words after a space start with a mark, and unknown characters become bytes."""
    vocab = {name: i for i, name in enumerate([*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])}
    for letter in "\u2581abcdefghilmnoprstuvwy.,;27":
        vocab.setdefault(letter, len(vocab))
    merges = [("\u2581", "a"), ("o", "a"), ("oa", "t"), ("b", "oat"), ("\u2581", "boat"), ("t", "h"), ("th", "e")]
    for merge in merges:
        vocab.setdefault("".join(merge), len(vocab))
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = hf.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(SPECIAL)
    return made


def llama2() -> hf.Tokenizer:
    made = pieces("never")
    made.pre_tokenizer = None
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.post_processor = template("<s> $A")
    return made


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])


def unigram() -> hf.Tokenizer:
    parts = {"pre_tokenizer": pre_tokenizers.Metaspace(), "decoder": decoders.Metaspace()}

    def trainer(**fixed):
        return trainers.UnigramTrainer(**fixed, unk_token="<unk>")

    return trained(models.Unigram(), trainer, normalizer=normalizers.NFKC(), **parts)


def word_piece() -> hf.Tokenizer:
    parts = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    return trained(
        models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer, decoder=decoders.WordPiece(), **parts
    )


def word_level() -> hf.Tokenizer:
    parts = {"pre_tokenizer": pre_tokenizers.Whitespace()}
    return trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, **parts)


def with_parts(**parts) -> hf.Tokenizer:
    made = byte_level()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def with_token(**flags: bool) -> hf.Tokenizer:
    made = byte_level(normalizer=normalizers.Lowercase())
    made.add_tokens([hf.AddedToken("<sep>", **flags)])
    return made


def shortened(**options) -> hf.Tokenizer:
    made = byte_level()
    made.enable_truncation(**options)
    return made


def padded(**options) -> hf.Tokenizer:
    made = byte_level(post_processor=template("<s> $A"))
    made.enable_padding(pad_id=3, pad_token="<pad>", **options)
    return made


def lowercase_characters() -> hf.Tokenizer:
    """A tokenizer that differs from those of kind `char` in its normalizer only."""
    made = hf.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("? boat")}, merges=[], unk_token="?"))
    made.decoder, made.normalizer = decoders.Fuse(), normalizers.Lowercase()
    return made


split = pre_tokenizers.Split
level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CASES = {
    "truncation-right": lambda: shortened(max_length=3),
    "truncation-left": lambda: shortened(max_length=3, direction="left", stride=1),
    "padding-right": lambda: padded(length=40),
    "padding-left-multiple": lambda: padded(direction="left", pad_to_multiple_of=16),
    "prefix-space": lambda: with_parts(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no-regex": lambda: with_parts(pre_tokenizer=level),
    "digits": lambda: with_parts(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level])),
    "split-isolated": lambda: with_parts(
        pre_tokenizer=pre_tokenizers.Sequence([split(hf.Regex(r"\p{L}+|\s+"), "isolated"), level])
    ),
    "split-removed": lambda: with_parts(pre_tokenizer=pre_tokenizers.Sequence([split(" ", "removed"), level])),
    "nfc": lambda: with_parts(normalizer=normalizers.NFC()),
    "strip-lower": lambda: with_parts(normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])),
    "replace": lambda: with_parts(normalizer=normalizers.Replace(hf.Regex(r"\s+"), " ")),
    "begin": lambda: with_parts(post_processor=template("<s> $A")),
    "end": lambda: with_parts(post_processor=template("$A </s>")),
    "begin-end": lambda: with_parts(
        post_processor=processors.Sequence([processors.ByteLevel(), template("<s> <s> $A </s>")])
    ),
    "roberta": lambda: with_parts(post_processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 1))),
    "bert": lambda: with_parts(post_processor=processors.BertProcessing(("</s>", 2), ("<s>", 1))),
    "token": with_token,
    "token-lstrip": lambda: with_token(lstrip=True, normalized=False),
    "token-rstrip": lambda: with_token(rstrip=True, special=True),
    "token-word": lambda: with_token(single_word=True),
    "metaspace-always": lambda: pieces("always"),
    "metaspace-first": lambda: pieces("first"),
    "metaspace-never": lambda: pieces("never"),
    "llama2": llama2,
    "unigram": unigram,
    "word-piece": word_piece,
    "word-level": word_level,
    "characters-lowercase": lowercase_characters,
}


def check_same(folder, theirs) -> LibraryTokenizer:
    """Check that our tokenizer of a folder, and our stored form of it, have the tokens and texts of theirs."""
    ours = read_tokenizer(folder)
    assert isinstance(ours, LibraryTokenizer)
    stored = load_tokenizer(ours.to_json())
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text).tolist() == stored.encode(text).tolist() == ids
        assert ours.encode_plain(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
        start, end = ours.start_tokens, ours.closing_tokens
        assert [*start, *ours.encode_plain(text), *end] == ids
    return ours


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_a_tokenizer_file(case, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(CASES[case]().to_str())
    check_same(tmp_path, transformers.PreTrainedTokenizerFast(tokenizer_file=str(file)))


SETTINGS = {
    "add_bos": {"add_bos_token": True, "bos_token": "<s>"},
    "no_bos": {"add_bos_token": False, "bos_token": "<s>"},
    "new-pad": {"pad_token": "[PAD]", "eos_token": "</s>", "image_token": "<img>"},
    "decoder": {
        "added_tokens_decoder": {
            "345": {"content": "<sep>", "lstrip": True, "rstrip": False, "normalized": False, "special": False},
            "344": {"content": "boat", "single_word": True, "special": True},
        },
        "extra_special_tokens": ["nobody"],
    },
    "token": {
        "eos_token": {"__type": "AddedToken", "content": "<sep>", "rstrip": True},
        "additional_special_tokens": [],
    },
    "flags": {"added_tokens_decoder": {"2": {"content": "</s>", "lstrip": True, "special": True}}},
}


@pytest.mark.parametrize("template_of", ["$A", "<s> $A"])
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_that_the_settings_add(name, template_of, tmp_path):
    made = byte_level() if template_of == "$A" else with_parts(post_processor=template(template_of))
    (tmp_path / "tokenizer.json").write_text(made.to_str())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **SETTINGS[name]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    check_same(tmp_path, transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path))


def test_tokens_of_earlier_files(tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<sep>"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"boat": 341, "<sep>": 340}))
    check_same(tmp_path, transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path))


# --- vocab.json and merges.txt ---------------------------------------------------------------------------------------


def write_vocab(folder, config: dict, settings: dict | None = None) -> None:
    byte_level().model.save(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("gpt2", None),
        ("gpt2", {"add_prefix_space": True, "bos_token": "<s>", "add_bos_token": True}),
        ("gpt2", {"eos_token": "</s>", "add_eos_token": True, "add_bos_token": True}),
        ("gpt_neox", {"tokenizer_class": "GPTNeoXTokenizer"}),
        ("llama", {"tokenizer_class": "GPT2TokenizerFast", "unk_token": "<unk>"}),
    ],
)
def test_tokens_of_a_vocabulary_with_merges(model, settings, tmp_path):
    write_vocab(tmp_path, {"model_type": model}, settings)
    check_same(tmp_path, transformers.AutoTokenizer.from_pretrained(tmp_path))


def test_files_that_are_not_read_are_named(tmp_path):
    def refused(*names):
        with pytest.raises(UserError) as caught:
            read_tokenizer(tmp_path)
        assert all(name in caught.value.problem for name in names)
        assert caught.value.file == tmp_path
        assert "tokenizer.json" in caught.value.remedy
        assert "save_pretrained" in caught.value.remedy

    assert read_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e")
    refused("tokenizer.model")
    write_vocab(tmp_path, {"model_type": "qwen3"})
    refused("vocab.json", "merges.txt")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert read_tokenizer(tmp_path) is not None
    (tmp_path / "merges.txt").unlink()
    refused("vocab.json")


def test_unknown_characters_are_named():
    for make, unknown in ((unigram, ["\u20ac"]), (word_level, ["\u20ac"]), (byte_level, [])):
        assert load_tokenizer(make().to_str()).find_unknown("boat \u20ac") == unknown


def test_the_files_that_are_downloaded():
    files = [
        "merges.txt",
        "vocab.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "x.json",
    ]
    assert set(select_files(files)) == {*files} - {"x.json"}
    settings = {"tokenizer_config.json", "special_tokens_map.json"}
    assert set(select_files([*files, "tokenizer.json"])) == {"tokenizer.json", *settings}


# --- refused ---------------------------------------------------------------------------------------------------------


def stored(**changes) -> str:
    data = json.loads(hf.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).to_str())
    data["model"] |= changes.pop("model", {})
    return json.dumps(data | changes)


PATTERN = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
REPLACED = {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b"}
LONG = {"type": "Replace", "pattern": {"String": "b"}, "content": "a" * 1000}
WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}
ENCODING = {
    "pattern": (stored(pre_tokenizer=PATTERN), "a" * 40 + "b"),
    "normalizer": (
        stored(normalizer={"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b"}),
        "a" * 99 + "b",
    ),
    "surrogate": (stored(), "a\ud800"),
}


@pytest.mark.parametrize("case", ENCODING)
def test_texts_that_the_library_rejects(case):
    content, text = ENCODING[case]
    with pytest.raises(UserError) as caught:
        load_tokenizer(content).encode(text)
    assert caught.value.remedy


FILES = {
    "number": (stored(model={"vocab": {"a": 2**32 - 2, "b": 1}}), "'a' of the tokenizer has the number 4294967294"),
    "added-number": (
        stored(added_tokens=[{"id": 399_999_999, "content": "<x>", **dict.fromkeys(FLAGS, False)}]),
        "'<x>' of the tokenizer has the number 399999999",
    ),
    "number-twice": (stored(model={"vocab": {"a": 5, "zz": 5, "b": 1}}), "'a' and 'zz' both have the number 5"),
    "unknown": (stored(model={"unk_token": "<unk>"}), "unknown token '<unk>' .* not in its vocabulary"),
    "unknown-word": (stored(model=WORDS), "unknown token '<unk>' .* not in its vocabulary"),
    "long-replacement": (stored(normalizer=LONG), "inserts 1,000 characters"),
    "long-replacement-inside": (
        stored(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, LONG]}),
        "inserts 1,000 characters",
    ),
    "empty-pattern": (stored(normalizer={**LONG, "pattern": {"String": ""}}), "replaces the empty text"),
    "large-number": (stored(model={"vocab": {"a": 2**33, "b": 1}}), "not a tokenizer"),
    "pattern": (stored(pre_tokenizer={**PATTERN, "pattern": {"Regex": "(a"}}), "not a tokenizer"),
    "other": ("[]", "not a tokenizer"),
    "deep": ("[" * 100_000, "not a tokenizer"),
}


@pytest.mark.parametrize("case", FILES)
def test_damaged_files_are_refused(case, tmp_path):
    content, problem = FILES[case]
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=problem) as caught:
        read_tokenizer(tmp_path)
    assert caught.value.file == tmp_path / "tokenizer.json"


def test_damaged_settings_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(stored())
    for settings in ({"added_tokens_decoder": {"x": "y"}}, {"eos_token": {"text": "x"}}, {"extra_special_tokens": 3}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(UserError, match="the special tokens") as caught:
            read_tokenizer(tmp_path)
        assert caught.value.file == tmp_path / "tokenizer_config.json"


def test_dropout_of_merges_is_removed(tmp_path):
    made = byte_level()
    made.model.dropout = 0.9
    (tmp_path / "tokenizer.json").write_text(made.to_str())
    tokenizer = read_tokenizer(tmp_path)
    rows = [tokenizer.encode(TEXTS[0]).tolist() for _ in range(9)]
    np.testing.assert_array_equal(rows, rows[:1] * 9)
