"""A prepared task whose examples are arrays in memory."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from taetpu.core.keys import Key
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch, Source, Split, epoch_rows
from taetpu.data.tokenizers.base import Tokenizer


class ExampleSource(Source):
    """A source of examples; see `data.base.Source`.

    Args:
        parts: The examples of `train`, `val` and `test`: the arrays of a `Batch`, in its order, with a leading axis of
            examples. Evaluation sets may be absent or empty.
        names: The names of the tokens; empty if there is a tokenizer.
        facts: Facts for reports.
        interface: The sizes of the model's inputs and outputs; by default, from the tokens to their logits.
        tokenizer: The tokenizer, if the tokens are text.
    """

    can_gather = True

    def __init__(
        self,
        parts: Mapping[str, Sequence[np.ndarray | None]],
        names: Sequence[str],
        facts: dict[str, Any],
        interface: Interface | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        by_part: dict[str, dict[str, Any]] = {
            part: dict(zip(Batch._fields, arrays, strict=False)) for part, arrays in parts.items()
        }
        self._train = {name: array for name, array in by_part.pop("train").items() if array is not None}
        self._splits = {
            part: Split(**arrays, num_bytes=None) for part, arrays in by_part.items() if len(arrays["tokens"])
        }
        self.num_windows, self.seq_len = self._train["weights"].shape
        self.names, self.tokenizer = tuple(names), tokenizer
        self.vocab_size = len(names) if tokenizer is None else tokenizer.vocab_size
        self._interface = interface or Interface(self.vocab_size)
        sizes = {"train": self.num_windows, **{part: len(arrays["tokens"]) for part, arrays in by_part.items()}}
        self._facts = {"vocab_size": self.vocab_size, "examples": sizes, **facts}
        self.evaluated = digest_arrays(part for name, part in parts.items() if name != "train")
        self.fingerprint = digest_arrays(parts.values())
        self.unit = " ".join(self.names) if tokenizer is None else tokenizer.unit

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return self._interface

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source.arrays`."""
        return self._train

    @property
    def facts(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Source.facts`."""
        return self._facts

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`."""
        return {name: part[rows] for name, part in self._train.items()}

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """See `Source.rows`."""
        assert self.num_windows is not None
        return epoch_rows(seed, start, count, batch_size, self.num_windows)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        return Batch(**{name: part[rows] for name, part in arrays.items()})

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        return self._splits.get(split)

    def show(self, ids: Any) -> str:
        """See `Source.show`."""
        return super().show(ids) if self.tokenizer is None else self.tokenizer.decode(ids)

    def prompt(self) -> np.ndarray:
        """Return the first example up to its first scored position."""
        tokens, weights = self._train["tokens"][0], self._train["weights"][0]
        return tokens[: np.flatnonzero(weights)[0] + 1]


def digest_arrays(parts: Iterable[Sequence[np.ndarray | None]]) -> str:
    """Return the SHA-256 of the arrays of parts, with their shapes, as float32 or int32."""
    digest = hashlib.sha256()
    for part in parts:
        for array in part:
            if array is not None:
                kind = "<f4" if array.dtype.kind == "f" else "<i4"
                digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, kind).tobytes())
    return digest.hexdigest()
