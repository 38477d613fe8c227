"""The prepared task `text` with tokens in memory."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from taetpu.data.base import train_windows
from taetpu.data.mixture import Mixture
from taetpu.data.stream_source import StreamSource
from taetpu.data.token_files import TokenStream
from taetpu.data.tokenizers.base import Tokenizer


class TextSource(StreamSource):
    """A tokenized corpus with training windows and evaluation splits; see `data.base.Source`.

    Args:
        streams: the tokens of `train`, `val` and `test`, int32 `(n,)`.
        tokenizer: the tokenizer.
        seq_len: the number of tokens in a window.
        evaluated: see `Source.evaluated`.
        facts: see `StreamSource`.
        eval_lengths: see `Task.eval_lengths`.
        segments: the document of each token, int32 `(n,)`, if batches contain segments.
        starts: whether every document begins with the same token.
        mixture: see `StreamSource`.
    """

    tokenizer: Tokenizer
    sample = 2**62

    def __init__(
        self,
        streams: Mapping[str, np.ndarray],
        tokenizer: Tokenizer,
        seq_len: int,
        evaluated: str,
        facts: dict[str, Any],
        eval_lengths: Sequence[int] = (),
        segments: Mapping[str, np.ndarray] | None = None,
        *,
        starts: bool = False,
        mixture: Mixture | None = None,
    ):
        self._segments, self._borders = segments, [0, len(streams["train"])]
        if mixture is not None:
            self._borders = np.cumsum([0, *mixture.tokens]).tolist()
        super().__init__(
            {name: TokenStream([stream]) for name, stream in streams.items()}, seq_len, tokenizer.vocab_size, facts,
            digest="", unit=tokenizer.unit, evaluated=evaluated, tokenizer=tokenizer,
            starts=starts or len(tokenizer.start_tokens) > 0, eval_lengths=eval_lengths, mixture=mixture,
        )  # fmt: skip
        self._windows = {"windows": self._cut(streams["train"])}
        if segments is not None:
            self._windows["segments"] = self._cut(segments["train"])[:, :-1]
        self.fingerprint = self._digest(streams)

    def _cut(self, stream: np.ndarray) -> np.ndarray:
        """Return the training windows of a stream: a view, or a copy if there are several sources."""
        parts = [train_windows(stream[slice(*part)], self.seq_len) for part in pairwise(self._borders)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source.arrays`."""
        return {name: np.ascontiguousarray(windows) for name, windows in self._windows.items()}

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`."""
        return {name: windows[rows] for name, windows in self._windows.items()}

    def _number_documents(self, name: str, stream: np.ndarray) -> np.ndarray | None:
        return None if self._segments is None else self._segments[name]

    def _digest(self, streams: Mapping[str, np.ndarray]) -> str:
        """Return the fingerprint."""
        digest = hashlib.sha256(f"text 2, seq_len {self.seq_len}, {self.tokenizer.to_json()}".encode())
        for name, stream in sorted(streams.items()):
            digest.update(f"{name} {len(stream)}".encode())
            digest.update(stream.astype("<i4").tobytes())
        for name, documents in sorted((self._segments or {}).items()):
            digest.update(f"segments of {name}".encode() + documents.astype("<i4").tobytes())
        if self.mixture is not None:
            digest.update(f"mixture {self.mixture}".encode())
        return digest.hexdigest()
