"""Files of token numbers that other programs wrote, memory-mapped where they lie and never copied.

The format follows from the content:

- llm.c and modded-nanogpt: a header of 256 int32 numbers (magic, version, number of tokens), then the tokens. The magic
  20240520 with version 1 means uint16, 20240801 with version 7 uint32 (llm.c's `dataloader.h` and `fineweb.py`).
- NumPy's `.npy` with its header.
- Megatron: tokens in `NAME.bin`; lengths, byte offsets and documents of its sequences in `NAME.idx` (the class
  `IndexedDataset` of Megatron-LM).
- Anything else are numbers without a header, as in `train.bin` of nanoGPT and in `.npy` files of OLMo.
"""

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np

from taetpu.core.errors import UserError

Dtype = Literal["uint16", "uint32", "int32"]

HEADER = 256 * 4
"""Bytes of the header of llm.c's files."""
LLM_C = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
"""Types of the tokens in llm.c's files, by magic and version."""
INDEX_MAGIC = b"MMIDIDX\0\0"
INDEX_HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, sequences, documents
INDEX_DTYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
NUMPY_MAGIC = b"\x93NUMPY"
SNIFFED = 2**14
"""Number of tokens at the start of a file without a header by which its type is checked."""
RAW = (".bin", ".npy", ".raw")
"""Endings of files whose numbers have no header."""
LARGEST_HIGH_WORD = 7
"""Largest upper half of a token in uint32: no vocabulary has more than half a million tokens."""


@dataclass(frozen=True)
class TokenFile:
    """One opened file.

    Attributes:
        path: the file.
        layout: the format, for messages and facts.
        tokens: its tokens, memory-mapped, `(n,)`.
        documents: the index of the first token of each document, `(documents,)`; None if the file does not say.
        trusted: whether the file states the type of its tokens.
    """

    path: Path
    layout: str
    tokens: np.ndarray
    documents: np.ndarray | None = None
    trusted: bool = True


def open_token_file(path: Path, dtype: Dtype | None = None) -> TokenFile:
    """Open a file of tokens.

    Args:
        path: the file; for Megatron's format either of the two.
        dtype: the type of the tokens in a file without a header, uint16 by default.

    Raises:
        UserError: if the file is empty, unreadable or cut, or if its header contradicts its size or `dtype`.
    """
    try:
        with path.open("rb") as file:
            start = file.read(HEADER)
        index = path.with_suffix(".idx")
        if start.startswith(INDEX_MAGIC) or (path.suffix == ".bin" and index.is_file()):
            return _megatron(index, path.with_suffix(".bin"), dtype)
        if start.startswith(NUMPY_MAGIC):
            return _numpy(path, dtype)
        if len(start) == HEADER and struct.unpack("<i", start[:4])[0] in {magic for magic, _ in LLM_C}:
            return _llm_c(path, start, dtype)
        return _raw(path, np.dtype(dtype or "uint16").newbyteorder("<"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", remedy="Use readable token files.") from None


def _llm_c(path: Path, start: bytes, dtype: Dtype | None) -> TokenFile:
    magic, version, count = struct.unpack("<3i", start[:12])
    if (known := LLM_C.get((magic, version))) is None:
        versions = ", ".join(str(number) for known_magic, number in LLM_C if known_magic == magic)
        problem = f"{path} has a header of llm.c with version {version}"
        raise UserError(problem, remedy=f"Use a file of version {versions}.")
    stored = path.stat().st_size - HEADER
    if stored != count * known.itemsize or count < 1:
        _cut(path, f"its header says {count:,} tokens of {known.itemsize} bytes, but {stored:,} bytes follow")
    _check_stated(path, known, dtype)
    return TokenFile(path, "llm.c", np.memmap(path, known, "r", HEADER, (count,)))


def _numpy(path: Path, dtype: Dtype | None) -> TokenFile:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        _cut(path, str(error))
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui" or not len(tokens):
        problem = f"{path} is an array {tokens.shape} of {tokens.dtype}, but tokens are a row of whole numbers"
        raise UserError(problem, remedy="Flatten it, or convert it to uint16 or uint32.")
    _check_stated(path, tokens.dtype, dtype)
    return TokenFile(path, "npy", tokens)


def _megatron(index: Path, data: Path, dtype: Dtype | None) -> TokenFile:
    content = index.read_bytes()
    if len(content) < INDEX_HEADER.size:
        _cut(index, f"it has {len(content)} bytes, but its header alone has {INDEX_HEADER.size}")
    magic, version, code, sequences, documents = INDEX_HEADER.unpack_from(content)
    if magic != INDEX_MAGIC or version != 1 or code not in INDEX_DTYPES:
        problem = f"{index} has the magic {magic!r}, version {version} and type {code}"
        expected = ", ".join(f"{number} ({kind.name})" for number, kind in INDEX_DTYPES.items())
        raise UserError(problem, remedy=f"Use an index with {INDEX_MAGIC!r}, version 1 and a type of {expected}.")
    known, size = INDEX_DTYPES[code], INDEX_HEADER.size + 12 * sequences + 8 * documents
    if len(content) != size:
        _cut(index, f"{sequences:,} sequences and {documents:,} documents need {size:,} bytes, it has {len(content):,}")
    at = INDEX_HEADER.size
    lengths = np.frombuffer(content, "<i4", sequences, at)
    offsets = np.frombuffer(content, "<i8", sequences, at + 4 * sequences)
    firsts = np.frombuffer(content, "<i8", documents, at + 12 * sequences)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    total, stored = int(starts[-1]), data.stat().st_size
    if stored != total * known.itemsize or total < 1:
        _cut(data, f"its index says {total:,} tokens of {known.itemsize} bytes, but it has {stored:,} bytes")
    if not np.array_equal(offsets, starts[:-1] * known.itemsize):
        raise UserError(
            f"the sequences of {index} do not follow each other in {data.name}", remedy="Write both files again."
        )
    if len(firsts) and (firsts.min() < 0 or firsts.max() > sequences or (np.diff(firsts) < 0).any()):
        problem = f"{index} says that documents start at sequences {firsts.min()} to {firsts.max()} of {sequences}"
        raise UserError(problem, remedy="Write the index again.")
    _check_stated(data, known, dtype)
    borders = starts[firsts[firsts < sequences]]
    return TokenFile(data, "megatron", np.memmap(data, known, "r", 0, (total,)), borders)


def _raw(path: Path, dtype: np.dtype) -> TokenFile:
    size = path.stat().st_size
    if path.suffix.lower() not in RAW:
        problem = f"{path} has neither the name nor the content of a file of tokens"
        remedy = f"Let its name end in {' or '.join(RAW)} if it holds numbers without a header."
        raise UserError(problem, remedy=remedy)
    if not size:
        raise UserError(f"{path} is empty", remedy="Copy or write the file again.")
    if size % dtype.itemsize:
        _cut(path, f"its {size:,} bytes are no whole number of tokens of {dtype.itemsize} bytes ({dtype.name})")
    return TokenFile(path, "raw", np.memmap(path, dtype, "r"), trusted=False)


def _check_stated(path: Path, stated: np.dtype, dtype: Dtype | None) -> None:
    if dtype is not None and stated != np.dtype(dtype):
        problem = f"{path} holds {stated.name}, as its header says, but dtype is {dtype}"
        raise UserError(problem, path=("dtype",), remedy="Remove `dtype`.")


def _cut(path: Path, reason: str) -> NoReturn:
    raise UserError(f"{path} is damaged or no file of tokens: {reason}", remedy="Copy or write the file again.")


def check_dtype(file: TokenFile, vocab_size: int) -> None:
    """Raise `UserError` if the first tokens of a file without a header show that they have another type.

    Numbers of 32 bits that are read as 16 bits have an upper half, nearly always 0, at every other place. Numbers of 16
    bits that are read as 32 bits are beyond any vocabulary.
    """
    start = np.asarray(file.tokens[:SNIFFED])
    if file.trusted:
        return
    if start.dtype.itemsize == 2:
        low, high = start[: len(start) // 2 * 2].reshape(-1, 2).T
        if len(high) > 1 and high.max() <= LARGEST_HIGH_WORD < low.max():
            _other_dtype(file, "uint32", f"every other token of {file.path} is {_values(high)}")
        return
    low, high = start[: len(start) // 2 * 2].reshape(-1, 2).T
    if len(high) > 1 and not high.any() and low.any():
        problem = f"every other token of {file.path} is 0, as if the file held numbers of 64 bits"
        raise UserError(problem, path=("source",), remedy="Convert the file to uint32, or save it with np.save.")
    if start.max() >= vocab_size and np.asarray(start).view("<u2").max() < vocab_size:
        _other_dtype(file, "uint16", f"{file.path} has the token {start.max():,}, beyond {vocab_size:,} tokens")


def _values(high: np.ndarray) -> str:
    return "0" if not high.any() else f"at most {high.max()}"


def _other_dtype(file: TokenFile, dtype: Dtype, problem: str) -> NoReturn:
    seen = f"{problem}, as if the file held {dtype} and not {file.tokens.dtype.name}"
    raise UserError(seen, path=("dtype",), remedy=f"Set `dtype: {dtype}`.")


def refuse_changed(files: Mapping[Path, os.stat_result]) -> None:
    """Raise `UserError` if a memory-mapped file was written since the given states.

    Reading beyond the end of a file that became shorter would end the process. A file that was deleted or replaced is
    still read as it was.
    """
    for path, before in files.items():
        try:
            now = path.stat()
        except FileNotFoundError:
            continue
        if os.path.samestat(before, now) and (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            problem = f"{path} changed while it was read: it had {before.st_size:,} bytes, and has {now.st_size:,} now"
            raise UserError(problem, remedy="Restore the file, then run the same command again.")


class TokenStream:
    """The tokens of several files as one row, which is read in parts and never as a whole.

    Args:
        parts: arrays of whole numbers, `(n,)` each, memory-mapped or not.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = [part for part in parts if len(part)]
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, places: slice) -> np.ndarray:
        """Return the tokens in a slice without a step as int32."""
        start, stop, step = places.indices(len(self))
        assert step == 1  # only windows are read
        return np.concatenate([np.zeros(0, np.int32), *(part.astype(np.int32) for part in self.pieces(start, stop))])

    def part(self, start: int, stop: int) -> "TokenStream":
        """Return the tokens from `start` up to `stop` as a stream that copies nothing."""
        return TokenStream(self.pieces(start, stop))

    def pieces(self, start: int, stop: int) -> list[np.ndarray]:
        """Return the parts of the files that hold the tokens from `start` up to `stop`."""
        pieces = []
        first = int(np.searchsorted(self.ends, start, "right"))
        for part, end in zip(self.parts[first:], self.ends[first:].tolist(), strict=True):
            begin = end - len(part)
            if begin >= stop:
                break
            pieces.append(part[max(start - begin, 0) : stop - begin])
        return pieces

    @property
    def files(self) -> dict[Path, os.stat_result]:
        """The memory-mapped files and their present state."""
        names = {part.filename for part in self.parts if isinstance(part, np.memmap) and part.filename is not None}
        return {Path(name): os.stat(name) for name in sorted(map(str, names))}

    def windows(self, rows: np.ndarray, seq_len: int) -> np.ndarray:
        """Return windows of `data.base.train_windows`: int32 `(rows, seq_len + 1)`.

        Args:
            rows: the numbers of the windows, `(rows,)`.
            seq_len: the number of tokens in a window.
        """
        windows = np.empty((len(rows), seq_len + 1), np.int32)
        starts = rows.astype(np.int64) * seq_len
        where = np.searchsorted(self.ends, starts, "right")
        for i in np.unique(where).tolist():
            begin = int(self.ends[i]) - len(self.parts[i])
            inside = np.flatnonzero((where == i) & (starts + seq_len < self.ends[i]))
            if len(inside):
                windows[inside] = self.parts[i][(starts[inside] - begin)[:, None] + np.arange(seq_len + 1)]
        last = self.ends[np.minimum(where, len(self.ends) - 1)]
        for i in np.flatnonzero(starts + seq_len >= last):  # windows that span files
            windows[i] = self[int(starts[i]) : int(starts[i]) + seq_len + 1]
        return windows


def join_streams(streams: Iterable[TokenStream]) -> TokenStream:
    """Return streams as one, without a copy."""
    return TokenStream([part for stream in streams for part in stream.parts])
