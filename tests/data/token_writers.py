"""Writers of token files, made from the descriptions of the formats."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_raw(path: Path, tokens: Sequence[int], dtype: str = "<u2") -> Path:
    """As nanoGPT's `prepare.py`, which calls `tofile`."""
    np.array(tokens, dtype).tofile(path)
    return path


def write_llm_c(
    path: Path, tokens: Sequence[int], *, magic: int = 20240520, version: int = 1, dtype: str = "<u2"
) -> Path:
    """As `write_datafile` of llm.c and modded-nanogpt: 256 int32 numbers, then the tokens."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.array(tokens, dtype).tobytes())
    return path


def write_megatron(
    path: Path, documents: Sequence[Sequence[Sequence[int]]], *, dtype: str = "<u2", code: int = 8
) -> Path:
    """As Megatron's `IndexedDatasetBuilder`: documents of sequences of tokens. Returns the path of the tokens."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = [*map(len, sequences)]
    offsets = [sum(lengths[:i]) * np.dtype(dtype).itemsize for i in range(len(lengths))]
    borders = np.concatenate([[0], np.cumsum([*map(len, documents)])])
    path.with_suffix(".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(borders))
        + np.array(lengths, "<i4").tobytes() + np.array(offsets, "<i8").tobytes() + borders.astype("<i8").tobytes()
    )  # fmt: skip
    data = path.with_suffix(".bin")
    np.concatenate([np.array(sequence, dtype) for sequence in sequences]).tofile(data)
    return data
