"""A prepared task whose tokens lie in files and are read in parts: that of `tokens`, and of `text` if it is large."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from taetpu.core.keys import Key
from taetpu.data.base import Batch, Source, Split, at_length, epoch_rows, evaluation_split
from taetpu.data.bigrams import Pairs, bigram_loss, find_pairs
from taetpu.data.mixture import Mixture
from taetpu.data.overlap import overlap
from taetpu.data.token_files import TokenStream, refuse_changed
from taetpu.data.tokenizers.base import Tokenizer

EVALUATED = ("val", "test")
PROMPT_LENGTH = 16
SAMPLE = 2**24


class StreamSource(Source):
    """Tokens with training windows and evaluation splits; see `data.base.Source`.

    Args:
        streams: the tokens of `train`, `val` and `test`; those of evaluation splits fit into memory.
        seq_len: the number of tokens in a window.
        vocab_size: the number of different tokens.
        facts: facts for reports, to which sizes and reference losses are added. `bytes` and `escape_bits` of evaluation
            splits are those of bits per byte.
        digest: a digest of the training tokens.
        unit: see `Source.unit`.
        evaluated: see `Source.evaluated`; by default a digest of the evaluation tokens.
        tokenizer: the tokenizer, if it is known.
        end_token: the token that ends a document, if batches contain segments.
        starts: whether every document begins with the same token.
        eval_lengths: see `Task.eval_lengths`.
        mixture: the sources of the training tokens, which follow each other; no window spans two of them.
    """

    can_gather = True
    num_windows: int
    sample = SAMPLE
    """Number of training tokens from which the reference loss and the overlap of splits are computed."""

    def __init__(
        self,
        streams: Mapping[str, TokenStream],
        seq_len: int,
        vocab_size: int,
        facts: dict[str, Any],
        *,
        digest: str,
        unit: str,
        evaluated: str | None = None,
        tokenizer: Tokenizer | None = None,
        end_token: int | None = None,
        starts: bool = False,
        eval_lengths: Sequence[int] = (),
        mixture: Mixture | None = None,
    ):
        self.streams, self.seq_len, self.vocab_size = streams, seq_len, vocab_size
        self.tokenizer, self.unit, self.end_token = tokenizer, unit, end_token
        windows = (len(streams["train"]) - 1) // seq_len if mixture is None else sum(mixture.windows)
        self.num_windows = windows  # pyright: ignore[reportIncompatibleVariableOverride]
        self.mixture = mixture
        self._facts, self._starts, self._files = facts, starts, streams["train"].files
        lengths = {name: seq_len for name in EVALUATED if len(streams[name])}
        lengths |= {at_length(length): length for length in eval_lengths}
        self._splits = {name: self._split(name.partition("@")[0], length) for name, length in lengths.items()}
        held_out = hashlib.sha256()
        for name in EVALUATED:
            held_out.update(f"{name} {len(streams[name])} ".encode() + streams[name][:].astype("<i4").tobytes())
        self.evaluated = evaluated or held_out.hexdigest()
        about = f"stream 1, {seq_len} of {vocab_size}, {unit}, {end_token}, {len(streams['train'])}, {digest}, "
        about += "" if mixture is None else f"{mixture}, "
        self.fingerprint = hashlib.sha256(f"{about}{held_out.hexdigest()}".encode()).hexdigest()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source.arrays`. All windows are read into memory."""
        return self.gather(np.arange(self.num_windows))

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`.

        Raises:
            UserError: if a file was written since the source was prepared.
        """
        refuse_changed(self._files)
        if self.mixture is None:
            return {"windows": self.streams["train"].windows(rows, self.seq_len)}
        windows = np.empty((len(rows), self.seq_len + 1), np.int32)
        for part, (places, numbers) in zip(self._parts, self.mixture.divide(rows), strict=True):
            windows[places] = part.windows(numbers, self.seq_len)
        return {"windows": windows}

    @cached_property
    def _parts(self) -> list[TokenStream]:
        """The training tokens of each source of the mixture."""
        assert self.mixture is not None
        ends = np.cumsum([0, *self.mixture.tokens]).tolist()
        return [self.streams["train"].part(*borders) for borders in pairwise(ends)]

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """See `Source.rows`."""
        if self.mixture is not None:
            return self.mixture.rows(seed, start, count, batch_size)
        return epoch_rows(seed, start, count, batch_size, self.num_windows)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        windows = arrays["windows"][rows]
        tokens, targets = windows[:, :-1], windows[:, 1:]
        segments = arrays.get("segments")
        if segments is not None:
            segments = segments[rows]
        elif self.end_token is not None:
            segments = number_documents(tokens, self.end_token)
        return Batch(tokens, targets, jnp.ones(tokens.shape, jnp.float32), segments)

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        return self._splits.get(split)

    def _split(self, name: str, seq_len: int) -> Split:
        stream = self.streams[name][:]
        documents = self._number_documents(name, stream)
        num_bytes = self._facts.get("bytes", {}).get(name, 0)
        escape_bits = self._facts.get("escape_bits", {}).get(name)
        return evaluation_split(
            stream, seq_len, self.vocab_size, num_bytes, escape_bits, documents, starts=self._starts
        )

    def _number_documents(self, name: str, stream: np.ndarray) -> np.ndarray | None:
        """Return the document of each token of an evaluation split; None without segments."""
        return None if self.end_token is None else np.asarray(number_documents(stream, self.end_token))

    def prompt(self) -> np.ndarray:
        """Return the first validation tokens, or the first training tokens without a validation split."""
        stream = self.streams["val"] if len(self.streams["val"]) else self.streams["train"]
        return stream[: max(1, min(PROMPT_LENGTH, self.seq_len // 2))]

    def show(self, ids: Any) -> str:
        """Return the text of tokens, or their numbers if the tokenizer is not known."""
        return " ".join(map(str, np.asarray(ids).tolist())) if self.tokenizer is None else self.tokenizer.decode(ids)

    @cached_property
    def sampled(self) -> Int[np.ndarray, " n"]:
        """The training tokens from which reference losses are counted: the first `sample`, of all sources alike."""
        parts = [self.streams["train"]] if self.mixture is None else self._parts
        return np.concatenate([part[: self.sample // len(parts)] for part in parts])

    @property
    def pairs(self) -> Pairs:
        """The pairs of neighbours of `sampled`."""
        return find_pairs(self.sampled)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`."""
        sample, val = self.sampled, self.streams["val"][:]
        whole = len(sample) == len(self.streams["train"])
        counted = "the training split" if whole else f"{len(sample):,} training tokens"
        return {
            **self._facts,
            **({} if self.mixture is None else {"mixture": self.mixture.facts}),
            "vocab_size": self.vocab_size,
            "tokens": {name: len(stream) for name, stream in self.streams.items()},
            "windows": self.num_windows,
            "overlap": {name: overlap(sample, self.streams[name][:]) for name in EVALUATED},
            **({} if whole else {"overlap_sample": {"tokens": len(sample), "of": len(self.streams["train"])}}),
            "chance_loss": math.log(self.vocab_size),
            "bayes_loss": None,
            "decoy_loss": bigram_loss(sample, val, self.vocab_size),
            "decoy": f"bigrams counted on {counted}, one added to each, scored on the validation split",
        }


def number_documents(tokens: Any, end_token: int) -> Any:
    """Return the number of the document of each token in its row; a document's last token is `end_token`."""
    ends = (tokens == end_token).astype(np.int32)
    return ends.cumsum(-1, dtype=np.int32) - ends
