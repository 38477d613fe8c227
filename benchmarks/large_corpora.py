"""Corpora larger than memory for `benchmarks.data`, and the tokenizers library alone on their texts."""

import argparse
import json
import multiprocessing
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.data.corpora import python_docs
from taetpu.data.splitting import SEPARATOR, join_documents

VOCAB = 256
"""Number of different tokens in files of tokens."""
BLOCK = 2**25
"""Number of tokens that are drawn; a file repeats them, shifted by one each time."""
SHARDS = 64
LENGTHS = (50, 250)
"""Shortest and longest part of the text that a document has, in characters."""
AT_ONCE = 256
"""Number of texts that the library is given at once."""
WAYS = ("processes", "threads")


def write_tokens(folder: Path, count: int) -> Path:
    """Write `train.bin` with `count` tokens of 16 bits and `val.bin` with 2^18, as nanoGPT does."""
    folder.mkdir()
    block = np.random.default_rng(0).integers(0, VOCAB, min(BLOCK, count), np.uint16)
    with (folder / "train.bin").open("wb") as file:
        for i, start in enumerate(range(0, count, len(block))):
            ((block[: count - start] + i) % VOCAB).astype("<u2").tofile(file)
    np.random.default_rng(1).integers(0, VOCAB, 2**18, np.uint16).tofile(folder / "val.bin")
    return folder


def write_documents(folder: Path, count: int) -> Path:
    """Write documents as JSON lines in `SHARDS` files: a number, and a part of the text of Python's `help()`."""
    folder.mkdir()
    text, rng = join_documents(python_docs()), np.random.default_rng(0)
    for shard in range(SHARDS):
        size = len(range(shard, count, SHARDS))
        lengths = rng.integers(*LENGTHS, size)
        starts = rng.integers(0, len(text) - LENGTHS[1], size)
        with (folder / f"{shard:02}.jsonl").open("w", encoding="utf-8") as file:
            for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
                file.write(json.dumps({"text": f"{shard}-{i} {text[start : start + length]}"}) + "\n")
    return folder


def write_tokenizer(file: Path, vocab_size: int = 8192) -> Path:
    """Write a byte-level BPE of the text of Python's `help()`."""
    from taetpu.data.tokenizers.bpe import BPEConfig

    file.write_text(BPEConfig(vocab_size=vocab_size).train(join_documents(python_docs())).to_json())
    return file


def read_texts(folder: Path, part: int, parts: int) -> list[str]:
    """Return the texts of every `parts`-th file, with what separates documents."""
    texts = []
    for file in sorted(folder.glob("*.jsonl"))[part::parts]:
        texts += [json.loads(line)["text"] + SEPARATOR for line in file.read_bytes().splitlines()]
    return texts


def encode(tokenizer: Path, texts: list[str]) -> tuple[float, int]:
    """Return the seconds in which the library gives the numbers of the tokens of texts, as arrays, and their bytes."""
    import tokenizers

    library, size = tokenizers.Tokenizer.from_file(str(tokenizer)), sum(len(text.encode()) for text in texts)
    arrays: list[np.ndarray] = []
    began = time.perf_counter()
    for start in range(0, len(texts), AT_ONCE):
        rows = library.encode_batch_fast(texts[start : start + AT_ONCE], add_special_tokens=False)
        arrays.append(np.array([*chain.from_iterable(row.ids for row in rows)], np.uint16))
    return time.perf_counter() - began, size


def _encode_part(tokenizer: Path, folder: Path, part: int, ready: Any, answers: Any) -> None:
    texts = read_texts(folder, part, 2)
    ready.wait()
    answers.put(encode(tokenizer, texts))


def library_rate(tokenizer: Path, folder: Path, way: str) -> tuple[float, int]:
    """Return the bytes per second of the library, with texts in memory, and their bytes.

    Args:
        tokenizer: a `tokenizer.json`.
        folder: files of JSON lines.
        way: two `processes` with half of the texts each, or the `threads` of the library on a quarter of the texts.
    """
    if way == "threads":
        seconds, size = encode(tokenizer, read_texts(folder, 0, 4))
        return size / seconds, size
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(2), context.Queue()
    pair = [context.Process(target=_encode_part, args=(tokenizer, folder, i, ready, answers)) for i in range(2)]
    for process in pair:
        process.start()
    measured = [answers.get() for _ in pair]
    for process in pair:
        process.join()
    size = sum(size for _, size in measured)
    return size / max(seconds for seconds, _ in measured), size


def main() -> None:
    """Print the bytes per second of the library alone, and the bytes of the texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", choices=WAYS)
    asked = parser.parse_args()
    print(json.dumps(library_rate(asked.tokenizer, asked.folder, asked.way)))


if __name__ == "__main__":
    main()
