"""The cache of tokenized corpora: a folder for each, with the tokens of its splits and the progress that was stored.

After each block of documents the progress is stored, so that a killed preparation continues. A folder is written by one
process at a time, which holds a lock on it.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.atomic_files import UNFINISHED, remove_unused, write_file
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.data.digests import digest_tokens
from taetpu.data.document_encoding import Block, Encoded
from taetpu.data.token_files import TokenFile
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.library import load_tokenizer

SPLITS: tuple[str, ...] = ("train", "val", "test")
COMMONEST = 1000
"""Number of unknown characters that are stored. Those that were rarest after some block are no longer counted."""


def _zeros() -> dict[str, int]:
    return dict.fromkeys(SPLITS, 0)


@dataclass
class Counts:
    """What has been prepared.

    Attributes:
        documents: number of documents of each corpus that were read.
        kept: number of documents of each split.
        tokens, characters, bytes: numbers of each split. `bytes` are UTF-8.
        longest: number of characters of the longest document of each split, with the text after it.
        escape_bits: see `Tokenizer.escape_bits`, of evaluation splits.
        unknown: number of unknown tokens of each split.
        unknown_texts: the commonest characters and words that became unknown tokens, with their counts.
        text: chained digests of the text of each split.
    """

    documents: dict[str, int] = field(default_factory=_zeros)
    kept: dict[str, int] = field(default_factory=_zeros)
    tokens: dict[str, int] = field(default_factory=_zeros)
    characters: dict[str, int] = field(default_factory=_zeros)
    bytes: dict[str, int] = field(default_factory=_zeros)
    longest: dict[str, int] = field(default_factory=_zeros)
    escape_bits: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(SPLITS[1:], 0.0))
    unknown: dict[str, int] = field(default_factory=_zeros)
    unknown_texts: dict[str, int] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SPLITS, ""))


class TokenWriter:
    """Writes the tokens of the splits, and continues where a killed process stopped.

    Args:
        folder: the folder of the corpus in the cache.
        vocab_size: the number of different tokens, which decides the type of the files.
        eval_tokens: number of tokens from which on an evaluation split takes no more documents.
    """

    def __init__(self, folder: Path, vocab_size: int, eval_tokens: int):
        self.folder, self.eval_tokens = folder, eval_tokens
        self.dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self.paths = {split: folder / f"{split}.bin" for split in SPLITS}
        self.done, self.counts, self.stored = False, Counts(), dict[str, str]()
        if (state := _read_progress(folder)) is not None:  # else not begun, or damaged: prepared from the start
            self.done, self.counts, self.stored = state["done"], Counts(**state["counts"]), state["digests"]

    @property
    def full(self) -> frozenset[str]:
        """The splits that take no more documents."""
        return frozenset(split for split in SPLITS[1:] if self.counts.tokens[split] >= self.eval_tokens)

    def start(self) -> None:
        """Remove tokens that were written after the last stored progress."""
        for split, path in self.paths.items():
            with path.open("ab") as file:
                file.truncate(self.counts.tokens[split] * self.dtype.itemsize)

    def append(self, block: Block, encoded: Mapping[str, Encoded]) -> None:
        """Write the tokens of a block, and store the progress."""
        counts, unknown = self.counts, Counter(self.counts.unknown_texts)
        for split, part in encoded.items():
            kept = len(part.places) if split == "train" else self._fitting(split, part.lengths)
            tokens, digest = part.tokens[: part.lengths[:kept].sum()], part.digest
            if kept < len(part.places):
                digest = str(kept) + digest  # the documents of the block that are kept
            with self.paths[split].open("ab") as file:
                file.write(tokens.data)
                file.flush()
                os.fsync(file.fileno())
            counts.kept[split] += kept
            counts.tokens[split] += len(tokens)
            counts.characters[split] += int(part.characters[:kept].sum())
            counts.bytes[split] += int(part.bytes[:kept].sum())
            counts.longest[split] = max(counts.longest[split], int(part.characters[:kept].max(initial=0)))
            for bits in part.escape_bits[:kept]:
                before = counts.escape_bits[split]
                counts.escape_bits[split] = None if before is None or bits is None else before + bits
            last = part.places[kept - 1] if kept else -1
            for texts in (texts for place, texts in part.unknown.items() if place <= last):
                unknown.update(texts)
                counts.unknown[split] += sum(texts.values())
            counts.text[split] = hashlib.sha256(f"{counts.text[split]}{digest}".encode()).hexdigest()
        commonest = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
        counts.unknown_texts = dict(commonest[:COMMONEST])
        counts.documents[block.name] += len(block.texts)
        self.store(done=False)

    def _fitting(self, split: str, lengths: np.ndarray) -> int:
        """Return how many documents an evaluation split takes: those that begin below its number of tokens."""
        room = self.eval_tokens - self.counts.tokens[split]
        return int((np.cumsum(lengths) - lengths < room).sum()) if room > 0 else 0

    def store(self, *, done: bool) -> None:
        """Store the progress."""
        self.done, self.stored = done, self.digests() if done else {}
        state = {"done": done, "counts": asdict(self.counts), "digests": self.stored}
        write_file(self.folder / PROGRESS, json.dumps(state).encode(), replace=True)

    def mapped(self, split: str) -> np.ndarray:
        """Return the tokens of a split, memory-mapped; fewer than there were if the file is cut."""
        path = self.paths[split]
        count = path.stat().st_size // self.dtype.itemsize if path.is_file() else 0
        return np.memmap(path, self.dtype, "r", shape=(count,)) if count else np.zeros(0, self.dtype)

    def digests(self) -> dict[str, str]:
        """Return the digest of each split's tokens."""
        tokens = {split: TokenFile(path, "prepared", self.mapped(split)) for split, path in self.paths.items()}
        return {split: digest_tokens(file).sha256 if len(file.tokens) else "" for split, file in tokens.items()}

    def check(self) -> str:
        """Return the digest of the training tokens.

        Raises:
            UserError: if a file no longer has the tokens that were written.
        """
        digests = self.digests()
        for split, path in self.paths.items():
            if digests[split] != self.stored.get(split):
                raise damaged(path, "it no longer has the tokens that were written")
        return digests["train"]


PROGRESS = "progress.json"
TOKENIZER = "tokenizer.json"


def damaged(path: Path, reason: str) -> UserError:
    """Return the error of a damaged file in the folder of a corpus."""
    problem = f"{path} of the cache is damaged: {reason}"
    return UserError(problem, remedy=f"Run `taetpu data clean {path.parent.name}`, then the same command again.")


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a prepared corpus.

    Raises:
        UserError: if its file is damaged.
    """
    path = folder / TOKENIZER
    try:
        return load_tokenizer(path.read_text(encoding="utf-8"))
    except (UserError, OSError, ValueError) as error:
        raise damaged(path, str(getattr(error, "problem", error))) from None


def _read_progress(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / PROGRESS).read_bytes())
        Counts(**state["counts"])
        return {"done": state["done"], "counts": state["counts"], "digests": state["digests"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_prepared() -> list[dict[str, Any]]:
    """Return the corpora in the cache: name, whether they are complete, tokens of the splits, and bytes."""
    rows = []
    for folder in sorted(cache_folder().glob("text/*/")):
        if not folder.name.startswith(UNFINISHED):
            state = _read_progress(folder)
            tokens = state["counts"]["tokens"] if state else dict.fromkeys(SPLITS, 0)
            size = sum(file.stat().st_size for file in folder.iterdir())
            rows.append({"name": folder.name, "complete": bool(state and state["done"]), **tokens, "bytes": size})
    return rows


def delete_prepared(name: str) -> None:
    """Delete a corpus from the cache.

    Raises:
        UserError: if another process is preparing it.
    """
    remove_unused(cache_folder() / "text" / name, f"preparing the corpus {name}")
