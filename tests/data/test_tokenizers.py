"""Tokenizers: round trips, parity with the `tokenizers` library, unseen characters, bytes."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.bpe import LONGEST_WORD
from taetpu.data.tokenizers.characters import UNK
from taetpu.data.tokenizers.library import load_tokenizer

TEXT = "To be, or not to be:\n\n    that is the question. \u00e9t\u00e9 \u4f60\u597d \U0001f600\n" * 3
KINDS = [{"kind": "char"}, {"kind": "byte"}, {"kind": "bpe", "vocab_size": 300}]
known_text = st.text(alphabet=sorted(set(TEXT)), max_size=60)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def trained(config: object, text: str = TEXT) -> Tokenizer:
    return build_component("tokenizer", config).train(text)  # pyright: ignore[reportAttributeAccessIssue]


TOKENIZERS = {str(config["kind"]): trained(config) for config in KINDS}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None, max_examples=50)
@given(text=known_text)
def test_known_text_is_restored_without_escape_bits(kind: str, text: str):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert tokenizer.escape_bits(text) == 0


@pytest.mark.parametrize("kind", ["byte", "bpe"])
@settings(deadline=None, max_examples=50)
@given(text=any_text)
def test_byte_level_kinds_restore_any_text(kind: str, text: str):
    ids = TOKENIZERS[kind].encode(text)
    assert TOKENIZERS[kind].decode(ids) == text
    assert TOKENIZERS[kind].escape_bits(text) == 0


@pytest.mark.parametrize("config", [*KINDS, {"kind": "char", "unseen": "drop"}], ids=str)
@settings(deadline=None, max_examples=50)
@given(text=any_text | known_text)
def test_the_library_reads_the_stored_file_with_the_same_result(config: dict, text: str):
    tokenizer = trained(config)
    stored = tokenizer.to_json()
    library, again = hf.Tokenizer.from_str(stored), load_tokenizer(stored)
    ids = tokenizer.encode(text)
    assert library.encode(text).ids == ids.tolist() == again.encode(text).tolist()
    assert library.decode(ids.tolist(), skip_special_tokens=False) == tokenizer.decode(ids)
    assert type(again) is type(tokenizer)
    assert again.escape_bits(text) == tokenizer.escape_bits(text)
    assert again.vocab_size == tokenizer.vocab_size


def test_byte_numbers_are_the_bytes():
    assert TOKENIZERS["byte"].vocab_size == 256
    assert TOKENIZERS["byte"].encode("h\u00e9").tolist() == list("h\u00e9".encode())
    assert TOKENIZERS["byte"].decode([0xFF]) == UNK


def test_char_vocabulary_is_the_training_text_in_code_point_order():
    tokenizer = trained("char", "banana")
    assert tokenizer.vocab_size == 4  # a, b, n and the unknown one
    assert tokenizer.encode("abn").tolist() == [0, 1, 2]


def test_unknown_characters_become_a_token_and_cost_their_bytes():
    tokenizer = trained("char", "abc")
    ids = tokenizer.encode("a\u00e9\ud800c")  # a lone surrogate is as unknown as any other
    assert tokenizer.decode(ids) == f"a{UNK}{UNK}c"
    assert tokenizer.escape_bits("a\u00e9\ud800c") == 8 * (2 + 3)


def test_unknown_characters_can_be_dropped():
    tokenizer = trained({"kind": "char", "unseen": "drop"}, "abc")
    assert tokenizer.vocab_size == 3
    assert tokenizer.decode(tokenizer.encode("xaybz\u00e9c")) == "abc"
    assert tokenizer.encode("xyz").shape == (0,)
    assert tokenizer.escape_bits("xaybz\u00e9c") is None
    assert tokenizer.escape_bits("abc") == 0


@pytest.mark.parametrize("stored", [False, True])
def test_unknown_characters_can_be_refused(stored: bool):
    tokenizer = trained({"kind": "char", "unseen": "error"}, "abc\ufffd")
    if stored:
        tokenizer = load_tokenizer(tokenizer.to_json())
    assert tokenizer.decode(tokenizer.encode("cab\ufffd")) == "cab\ufffd"
    with pytest.raises(UserError) as caught:
        tokenizer.encode("ab\u00e9")
    text = str(caught.value)
    assert "'\u00e9' (U+00E9, at index 2" in text
    assert "where:  unseen" in text
    assert "unk or drop" in text


def test_bpe_training_is_the_same_in_every_process():
    # Every pair of TEXT occurs three times, so that ties decide, and hash maps are seeded anew in each process.
    program = (
        "import sys; from taetpu.data.tokenizers.bpe import BPEConfig;"
        "sys.stdout.write(BPEConfig(vocab_size=290).train(sys.argv[1]).to_json())"
    )
    other = subprocess.run([sys.executable, "-c", program, TEXT], capture_output=True, text=True, check=True).stdout
    here = trained({"kind": "bpe", "vocab_size": 290})
    assert here.to_json() == other
    assert here.vocab_size == 290
    assert len(here.encode(TEXT)) < len(TEXT.encode()) / 2


def test_long_words_are_divided_for_training_and_other_words_are_not():
    assert trained({"kind": "bpe", "vocab_size": 300}, "a" * 3 * LONGEST_WORD).vocab_size == 256 + 12  # 2, 4 ... 4096
    text, inner = f"{TEXT} {'a' * (LONGEST_WORD - 1)}", hf.Tokenizer(hf.models.BPE())
    inner.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = hf.decoders.ByteLevel()
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([text], trainer)
    assert trained({"kind": "bpe", "vocab_size": 300}, text).to_json() == inner.to_str()


@pytest.mark.slow
def test_a_word_of_a_million_bytes_is_trained_and_encoded():
    text = "".join(np.random.default_rng(0).choice([*"ACGT"], 1_000_000))
    tokenizer = trained({"kind": "bpe", "vocab_size": 300}, text)
    assert tokenizer.vocab_size == 300
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_an_interrupt_ends_the_training_of_bpe():
    program = (
        "import random, sys; from taetpu.data.tokenizers.bpe import BPEConfig;"
        "text = ''.join(random.Random(0).choices('ACGT', k=6_000_000)); print('ready', flush=True);"
        "BPEConfig(vocab_size=20_000).train(text)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in errors
    assert process.returncode


def test_bpe_needs_room_for_the_bytes():
    with pytest.raises(UserError, match="255 is not allowed") as caught:
        build_component("tokenizer", {"kind": "bpe", "vocab_size": 255}, ("task", "tokenizer"))
    assert caught.value.path == ("task", "tokenizer", "vocab_size")
    with pytest.raises(UserError, match="'vocab_size' is missing"):
        build_component("tokenizer", "bpe")
