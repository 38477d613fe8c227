"""Files of tokenizers, written by the libraries that own their formats."""

import base64
import io
from pathlib import Path
from typing import Any

import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers, trainers

from taetpu.data.tokenizers.characters import byte_letters

END = "<|endoftext|>"


def train_bpe(text: str, size: int = 300) -> hf.Tokenizer:
    """Return a tokenizer in the form of GPT-2's."""
    inner = hf.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    inner.train_from_iterator([text], trainer)
    return inner


def ranks_of(inner: hf.Tokenizer) -> dict[bytes, int]:
    """Return tiktoken's ranks for a byte-level BPE: the bytes first, then the merged tokens in their order."""
    names = sorted(inner.get_vocab(with_added_tokens=False), key=inner.get_vocab().__getitem__)
    tokens = [bytes(map(byte_letters().__getitem__, name)) for name in names if name != END]
    return {token: rank for rank, token in enumerate(tokens)}


def write_ranks(file: Path, ranks: dict[bytes, int]) -> Path:
    """Write a file of ranks as tiktoken does."""
    file.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    return file


def fill_ranks(ranks: dict[bytes, int], count: int) -> dict[bytes, int]:
    """Return ranks with further tokens of four bytes, which no merges lead to, up to a number of ranks."""
    return {**ranks, **{b"\xfe" + number.to_bytes(3): number for number in range(len(ranks), count)}}


def train_pieces(text: str, size: int = 320, **settings: Any) -> bytes:
    """Return the content of a SentencePiece model; by default, as that of Llama 2: BPE that falls back to bytes."""
    import sentencepiece

    written = io.BytesIO()
    llama = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    llama |= {"remove_extra_whitespaces": False, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in text.splitlines() if line), model_writer=written, vocab_size=size,
        minloglevel=2, **{**llama, **settings},
    )  # fmt: skip
    return written.getvalue()


def write_tokenizer(file: Path, text: str) -> Path:
    """Write a tokenizer that is trained on a text, in the format of the file's name."""
    if file.suffix == ".json":
        file.write_text(train_bpe(text).to_str())
    elif file.suffix == ".tiktoken":
        write_ranks(file, ranks_of(train_bpe(text)))
    else:
        file.write_bytes(train_pieces(text))
    return file
