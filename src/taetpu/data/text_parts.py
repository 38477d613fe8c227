"""The texts of a corpus in memory: those of each source for training, and those of the evaluation splits."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from taetpu.core.errors import UserError
from taetpu.data.corpora import Corpus
from taetpu.data.splitting import (
    Document,
    chain_texts,
    collapse,
    group_duplicates,
    join_documents,
    split_by_document,
    split_by_hash,
    split_in_order,
    with_separators,
)

EVALUATED = ("val", "test")
SPLITTERS = {"order": split_in_order, "document": split_by_document, "hash": split_by_hash}
DIVIDE_MORE = "Use more documents, e.g. with `per: line`, or, for windows, `split: order`."


class Parts(NamedTuple):
    """The texts of the splits, one for each document, with the separators that follow them.

    Attributes:
        training: the training texts of each source.
        evaluation: the texts of `val` and `test`.
        facts: facts about the corpus.
    """

    training: dict[str, list[str]]
    evaluation: dict[str, list[str]]
    facts: dict[str, Any]

    @property
    def documents(self) -> dict[str, list[str]]:
        """The texts of each split, those of all sources together."""
        return {"train": [*chain.from_iterable(self.training.values())], **self.evaluation}

    @property
    def longest(self) -> dict[str, int]:
        """The number of characters of the longest document of each split, with the separator."""
        return {name: max(map(len, part), default=0) for name, part in self.documents.items()}

    @property
    def texts(self) -> dict[str, str]:
        """The text of each split."""
        return {name: "".join(part) for name, part in self.documents.items()}


def read_parts(
    corpora: Mapping[str, Corpus],
    held_out: Mapping[str, Corpus],
    shares: Mapping[str, float],
    separator: str,
    split: str | None,
) -> Parts:
    """Return the texts of each split.

    Evaluation splits have a share of every source. A training document that is also an evaluation document is left out.

    Args:
        corpora: the sources by name.
        held_out: the corpora of evaluation files by split.
        shares: the shares of each source that evaluation splits take.
        separator: the text after each document.
        split: the way to split (see `TextTask.split`).

    Raises:
        UserError: if a corpus cannot be read or split, or if a source has no training text.
    """
    documents = {name: corpus.read() for name, corpus in corpora.items()}
    if len(documents) > 1:  # an identity must not depend on names
        digests = {name: hash_text(join_documents(part)) for name, part in documents.items()}
        documents = {name: documents[name] for name in sorted(documents, key=digests.__getitem__)}
    evaluation = {name: corpus.read() for name, corpus in held_out.items()}
    evaluated = {collapse(document.text) for part in evaluation.values() for document in part}
    training, parts, ways, removed = dict[str, list[str]](), {name: list[str]() for name in EVALUATED}, {}, 0
    for name, part in documents.items():
        kept = [document for document in part if not evaluated or collapse(document.text) not in evaluated]
        removed += len(part) - len(kept)
        divided, way = _divide(kept, corpora[name].source, shares, separator, split)
        training[name], ways[way] = divided["train"], None
        parts = {split: chain_texts([part, divided[split]], separator) for split, part in parts.items()}
    if len(documents) > 1:  # an evaluation document of one source may be a training document of another
        evaluated = {collapse(text) for part in parts.values() for text in part}
        for name, part in training.items():
            training[name] = [text for text in part if collapse(text) not in evaluated]
            removed += len(part) - len(training[name])
            if not training[name]:
                raise _all_evaluated(name)
    parts |= {name: with_separators(part, separator) for name, part in evaluation.items()}
    everything = [*chain.from_iterable(documents.values())]
    text = join_documents([*everything, *chain.from_iterable(evaluation.values())])
    facts = {"sha256": hash_text(text), "documents": len(everything), "split": ", ".join(ways)}
    return Parts(training, parts, facts | ({"removed": removed} if removed else {}))


def _divide(
    documents: Sequence[Document], source: str, shares: Mapping[str, float], separator: str, split: str | None
) -> tuple[dict[str, list[str]], str]:
    """Return the texts of the splits of one source, and the way in which they were split."""
    if not documents:
        raise _all_evaluated(source)
    split = split or ("document" if len(documents) > 1 else "order")
    if split == "document" and any(shares.values()) and len(group_duplicates(documents)) == 1:
        problem = f"all documents of {source!r} have the same text, so they cannot be split by document"
        if len(documents) == 1:
            problem = f"{source!r} has one document, which `split: document` does not divide"
        raise UserError(problem, path=("split",), remedy=DIVIDE_MORE)
    parts = SPLITTERS[split](documents, shares["val"], shares["test"], separator)
    for name, share in shares.items():
        if split == "hash" and share and not parts[name]:
            raise none_assigned(name, len(documents), source)
    return parts, split


def none_assigned(name: str, documents: int, source: str) -> UserError:
    """Return the error for a share of which `split: hash` makes no use."""
    problem = f"`split: hash` assigns none of the {documents:,} documents of {source!r} to {name}"
    if documents == 1:
        problem = f"{source!r} has one document, which `split: hash` does not divide, so {name} is empty"
    return UserError(problem, path=("split",), remedy=DIVIDE_MORE)


def _all_evaluated(source: str) -> UserError:
    problem = f"every document of {source!r} is also an evaluation document"
    return UserError(problem, path=("source",), remedy="Use other training text.")


def hash_text(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
