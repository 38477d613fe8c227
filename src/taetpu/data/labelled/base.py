"""The base of tasks on labelled rows: which rows are in which split, and how their texts become sequences."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from taetpu.core.config import SlotMark
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.model_interface import Interface
from taetpu.data.base import TOKEN_METRICS, Batch, BatchSpec
from taetpu.data.corpora import Sources, open_corpus, origins
from taetpu.data.document_encoding import split_rows
from taetpu.data.document_files import Layout
from taetpu.data.example_source import ExampleSource
from taetpu.data.labelled.rows import Example, divide, read_examples
from taetpu.data.labelled.sequences import BEGIN, END, Frame, fit, frame_of, with_frame
from taetpu.data.source_task import EVALUATED, SourceTask
from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig
from taetpu.data.tokenizers.characters import CharConfig
from taetpu.data.tokenizers.files import ReadTokenizerConfig
from taetpu.data.unknown_tokens import find_unknown

Share = Annotated[float, Field(ge=0, lt=1)]
Examples = dict[str, list[Example]]
"""The rows of each split."""
Sequences = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens and types, int32 `(rows, seq)`, and the number of tokens of each row, int32 `(rows,)`."""


class LabelledSource(ExampleSource):
    """The prepared rows of a task; see `data.base.Source`.

    Losses do not depend on how texts are divided into tokens, so tasks with different tokenizers are comparable.

    Args:
        parts: See `ExampleSource`.
        facts: See `ExampleSource`.
        interface: The sizes of the model's inputs and outputs.
        tokenizer: The tokenizer.
        rows: The rows of each split.
        unit: What the outputs are.
    """

    def __init__(
        self, parts: Mapping[str, Batch], facts: dict[str, Any], interface: Interface, tokenizer: Tokenizer,
        rows: Examples, unit: str,
    ):  # fmt: skip
        arrays: Any = {name: [*part] for name, part in parts.items()}
        super().__init__(arrays, (), facts, interface, tokenizer)
        held_out = repr([(name, e.texts, e.label) for name in EVALUATED for e in rows[name]])
        self.evaluated, self.unit = hashlib.sha256(held_out.encode()).hexdigest(), unit
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} {unit}".encode()).hexdigest()


class LabelledTask(SourceTask):
    """Base of the tasks on labelled rows."""

    one_target = True
    scored_unit: ClassVar[str] = "row"  # in the units of loss and accuracy

    source: Annotated[Sources, Field(description="JSON lines, CSV, TSV, parquet or Arrow files, or a hub dataset")]
    val_source: Sources | None = None
    """Files of validation rows, in place of a share of `source` or of its published split."""
    test_source: Sources | None = None
    """Files of test rows, in place of a share of `source` or of its published split."""
    format: Literal["jsonl", "csv", "tsv", "parquet", "arrow"] | None = None
    """Format of all files; `none`: that of their endings."""
    text: str = "text"
    """Column or key of the text."""
    long_texts: Literal["refuse", "crop"] = "refuse"
    """Texts that do not fit into `seq_len`: an error, or their start is read."""
    tokenizer: Annotated[TokenizerConfig, SlotMark("tokenizer")] = CharConfig()
    """Tokenizer of the texts."""
    bos: str | None = None
    """Token before a sequence; `none`: that of the tokenizer, `[CLS]` if it is trained here."""
    separator: str | None = None
    """Token after each text; `none`: that of the tokenizer, `[SEP]` if it is trained here."""
    types: Literal[1, 2] | None = None
    """Number of types of tokens that the model tells apart; `none`: 2 for sequences with two texts, else 1."""
    val: Share = 0.1
    """Share of the rows for validation, without `val_source`. Datasets with such a split give it in full."""
    test: Share = 0.0
    """Share of the rows for testing, without `test_source`. Datasets with such a split give it in full."""
    split: Literal["document", "hash"] = "document"
    """Way to split: by row, with exact shares, or by `hash` of the text, so that more rows move none."""

    @property
    def causal(self) -> bool:
        """False: a position may attend to later positions."""
        return False

    @property
    def any_mask(self) -> bool:
        """See `Task.any_mask`."""
        return True

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """See `Task.metric_specs`."""
        units = {"loss": f"nats per {self.scored_unit}", "accuracy": f"share of {self.scored_unit}s"}
        return {name: replace(TOKEN_METRICS[name], unit=unit) for name, unit in units.items()}

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(lengths=True)

    @property
    def drawn_splits(self) -> tuple[str, ...]:
        """The evaluation splits without files."""
        return tuple(name for name in EVALUATED if getattr(self, f"{name}_source") is None)

    @property
    def num_texts(self) -> int:
        """The number of texts in a sequence."""
        return 1

    @property
    def named(self) -> tuple[str, ...]:
        """The settings that name columns."""
        return ("text",)

    @property
    def columns(self) -> dict[str, str]:
        """The settings that name columns, by column."""
        return {getattr(self, name): name for name in self.named}

    @abstractmethod
    def parse(self, row: Mapping[str, Any], place: str) -> tuple[tuple[str, ...], Any, str]:
        """Return the texts and the label of a row, and the text by which rows belong together; see `rows.Parse`."""

    @abstractmethod
    def build(self, rows: Examples, tokenizer: Tokenizer, frame: Frame) -> LabelledSource:
        """Return the source, given the rows of each split."""

    def prepare(self, folder: Path) -> LabelledSource:
        """See `Task.prepare`."""
        if self.eval_lengths:
            problem = f"eval_lengths is {list(self.eval_lengths)}, but rows have their own lengths"
            raise UserError(problem, path=("eval_lengths",), remedy="Remove it.")
        rows, facts = self._read(folder)
        texts = [text for example in rows["train"] for text in self.whole_texts(example)]
        # The characters are those of the texts. Other tokenizers must not merge the ends of neighbours.
        tokenizer, frame = self._frame(("" if isinstance(self.tokenizer, CharConfig) else "\n").join(texts), folder)
        source = self.build(rows, tokenizer, frame)
        source.facts.update(facts)
        return source

    def _read(self, folder: Path) -> tuple[Examples, dict[str, Any]]:
        """Return the rows of each split, and facts about them."""
        if len(self.columns) < len(self.named):
            columns = [getattr(self, name) for name in self.named]
            column = next(name for name in columns if columns.count(name) > 1)
            problem = f"two of {', '.join(self.named)} name the column {column!r}"
            raise UserError(problem, path=(self.named[-1],), remedy="Name different columns.")
        layout = Layout(self.format)
        corpus = open_corpus(self.source, folder, layout)
        held_out = self.open_held_out(self.source, folder, layout)
        shares = self.shares(held_out, "rows")
        evaluation = {name: read_examples(part, self.columns, self.parse) for name, part in held_out.items()}
        known = {example.key for part in evaluation.values() for example in part}
        trained = read_examples(corpus, self.columns, self.parse)
        parts, removed = divide(trained, shares, self.split, known, corpus.source)
        facts = {
            "source": self.source if isinstance(self.source, str) else ", ".join(self.source),
            **origins({"train": corpus, **held_out}),
            "split": self.split,
            **({"removed": removed} if removed else {}),
        }
        return {**parts, **evaluation}, facts

    def _frame(self, text: str, folder: Path) -> tuple[Tokenizer, Frame]:
        """Return the tokenizer, and the special tokens of a sequence."""
        with locate_errors("tokenizer"):
            tokenizer = self.tokenizer.prepare(text, folder)
        add = not isinstance(self.tokenizer, ReadTokenizerConfig)
        if add:
            tokenizer = with_frame(tokenizer, self.bos or BEGIN, self.separator or END, add=True)
        elif self.separator is not None:
            tokenizer = with_frame(tokenizer, self.bos, self.separator, add=False)
        elif self.bos is not None:
            problem = f"bos is {self.bos!r}, but no token follows a text"
            raise UserError(problem, path=("bos",), remedy="Set `separator` to a token of the tokenizer.")
        frame = frame_of(tokenizer, self.num_texts)
        if self.num_texts > 1 and not len(frame.special[1]):
            problem = "the tokenizer puts no token between two texts"
            raise UserError(problem, path=("separator",), remedy="Set `separator` to a token of the tokenizer.")
        return tokenizer, frame

    def encode(
        self, rows: Sequence[tuple[Example, tuple[np.ndarray, ...]]], frame: Frame
    ) -> tuple[Sequences, dict[str, int]]:
        """Return sequences, the number of tokens of the longest one, and how many texts are cropped.

        Args:
            rows: The rows with the tokens of their texts.
            frame: The special tokens.

        Raises:
            UserError: if a row does not fit into `seq_len`, or has no tokens.
        """
        room = self.seq_len - frame.size
        tokens = np.zeros((len(rows), self.seq_len), np.int32)
        types, lengths, longest, cropped = np.zeros_like(tokens), np.zeros(len(rows), np.int32), 0, 0
        for i, (example, texts) in enumerate(rows):
            size = sum(map(len, texts)) + frame.size
            if not all(map(len, texts)):
                problem = f"a text in {example.place} has no tokens: {min(example.texts, key=len)[:40]!r}"
                raise UserError(problem, path=("source",), remedy="Remove the row, or use another tokenizer.")
            longest = max(longest, size)
            if size > self.seq_len:
                cropped += 1
                if self.long_texts == "refuse" or room < len(texts):
                    problem = f"{example.place} has {size:,} tokens, more than seq_len {self.seq_len}"
                    remedy = f"Use seq_len {size} or more, or set `long_texts: crop`."
                    raise UserError(problem, path=("seq_len",), remedy=remedy)
            ids, of = frame.join(fit(texts, room))
            tokens[i, : len(ids)], types[i, : len(ids)], lengths[i] = ids, of, len(ids)
        return (tokens, types, lengths), {"longest": longest, "cropped": cropped}

    def encode_all(
        self, rows: Examples, tokenizer: Tokenizer, frame: Frame
    ) -> tuple[dict[str, Sequences], dict[str, Any]]:
        """Return the sequences of each split, and facts about their tokens. Texts of a row are in one sequence."""
        made, longest, cropped = dict[str, Sequences](), dict[str, int](), dict[str, int]()
        for name, examples in rows.items():
            texts = self.tokens_of([text for example in examples for text in example.texts], tokenizer)
            pairs = zip(*[iter(texts)] * self.num_texts, strict=True)
            made[name], about = self.encode([*zip(examples, pairs, strict=True)], frame)
            longest[name], cropped[name] = about["longest"], about["cropped"]
        return made, self.text_facts(rows, tokenizer, made, longest, cropped)

    def whole_texts(self, example: Example) -> tuple[str, ...]:
        """Return the texts of a row as they are encoded."""
        return example.texts

    def tokens_of(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
        """Return the tokens of texts, without special tokens."""
        with locate_errors("tokenizer"):
            return split_rows(*tokenizer.encode_all(texts))

    def text_facts(
        self, rows: Examples, tokenizer: Tokenizer, made: Mapping[str, Sequences], longest: Mapping[str, int],
        cropped: Mapping[str, int],
    ) -> dict[str, Any]:  # fmt: skip
        """Return facts about the tokens of each split: the longest sequence, cropped texts and unknown tokens."""
        joined = {name: "".join(text for e in part for text in self.whole_texts(e)) for name, part in rows.items()}
        place = np.arange(self.seq_len)
        streams = {name: tokens[place < lengths[:, None]] for name, (tokens, _, lengths) in made.items()}
        return {
            "longest": dict(longest),
            **({"cropped": dict(cropped)} if any(cropped.values()) else {}),
            **find_unknown(joined, streams, tokenizer),
            **tokenizer.facts,
        }
