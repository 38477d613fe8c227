"""`benchmarks.data`: tiny corpora pass through every measurement of tokens."""

import os

import numpy as np
import pytest
from benchmarks.data import Command, anonymous, compare_feeds, show_peaks, train_tokens
from benchmarks.large_corpora import SHARDS, library_rate, read_texts, write_documents, write_tokenizer, write_tokens

from taetpu.data.token_files import open_token_file


def test_written_corpora(tmp_path):
    corpus = write_tokens(tmp_path / "tokens", 1000)
    tokens = open_token_file(corpus / "train.bin").tokens
    assert (len(tokens), tokens.dtype, int(tokens.max()) < 256) == (1000, np.uint16, True)
    documents = write_documents(tmp_path / "documents", 2 * SHARDS + 1)
    assert len([*documents.iterdir()]) == SHARDS
    texts = [text for part in range(2) for text in read_texts(documents, part, 2)]
    assert len({*texts}) == 2 * SHARDS + 1
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", 300)
    rate, size = library_rate(tokenizer, documents, "threads")
    assert rate > 0
    assert size == sum(len(text.encode()) for text in read_texts(documents, 0, 4))


def test_limits_are_shown():
    assert "MISSED" in show_peaks("tokens", [10**8, 2 * 10**9])
    assert "MISSED" not in show_peaks("tokens", [10**8])


@pytest.mark.slow  # starts processes
def test_tokens_are_trained_killed_and_resumed(tmp_path):

    write_tokens(tmp_path / "corpus", 100_000)
    measured = train_tokens(tmp_path, 400)
    assert measured["equal"]
    assert measured["files"] == 3
    assert all(peak > 10**8 for peak in measured["peaks"])
    assert anonymous(os.getpid()) > 10**7
    with pytest.raises(RuntimeError) as caught:
        Command(tmp_path, "run", "absent.yaml").end()
    assert "absent.yaml" in str(caught.value)


@pytest.mark.slow  # compiles
def test_feeds_take_turns(tmp_path):
    write_tokens(tmp_path / "corpus", 20_000_000)
    measured = compare_feeds(tmp_path, rounds=2, seconds=0.2)
    assert len(measured["windows"]) == 2
    assert measured["ratio"]["least"] <= measured["ratio"]["median"] <= measured["ratio"]["most"]
