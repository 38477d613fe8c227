"""Sentences on the text: where it is from, its mixture, overlap of the splits, and characters without a token."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from taetpu.report import summary

NOTABLE = 0.01
"""Share of overlapping windows, and share of escape bits in 8 bits per byte, above which the report mentions them."""
MOST_CLASSES = 12
"""Number of classes that the report names."""
FACTS = (
    "overlap", "overlap_sample", "bytes", "escape_bits", "unknown", "commonest_unknown", "tokenizer_sample", "fetched",
    "mixture", "cropped", "classes",
)  # fmt: skip
"""Names of the facts that tasks record about their text; see `data.base.Source.facts`."""


def describe_evaluation_text(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each notable fact, prefixed with the names of its arms unless it applies to all arms.

    Args:
        data: the facts recorded by each arm's task.
    """
    arms: dict[str, list[str]] = {}
    for arm, facts in data.items():
        notes = (
            _fetched_notes, _class_notes, _mixture_notes, _cropped_notes, _sample_notes, _overlap_notes, _unknown_notes,
            _escape_notes,
        )  # fmt: skip
        for sentence in chain.from_iterable(note(facts) for note in notes):
            arms.setdefault(sentence, []).append(arm)
    return [text if len(names) == len(data) else f"{summary.join_and(names)}: {text}" for text, names in arms.items()]


def _fetched_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    for split, origins in _by_split(facts, "fetched").items():
        for origin in origins:
            details = [f"{name} {origin[name]}" for name in ("split", "commit", "licence") if name in origin]
            yield f"Data of {split}: {', '.join([origin['source'], *details])}; number of files: {origin['files']}."


def _class_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    if classes := _by_split(facts, "classes"):
        commonest = sorted(classes, key=lambda name: -classes[name])[:MOST_CLASSES]
        listed = [f"{name} {_percent(classes[name] / sum(classes.values()))}" for name in commonest]
        more = f" and {len(classes) - MOST_CLASSES:,} more" if len(classes) > MOST_CLASSES else ""
        yield f"Classes of the training split: {', '.join(listed)}{more}."


def _mixture_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    sources = [
        f"{name} {100 * read['share']:.3g} % (weight {read['weight']:.3g}, {read['epochs']:.3g} epochs)"
        for name, read in _by_split(facts, "mixture").items()
        if "share" in read
    ]
    if sources:
        yield f"Shares of the trained windows: {', '.join(sources)}."


def _cropped_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    counts = [f"{count:,} of {split}" for split, count in _by_split(facts, "cropped").items() if count]
    if counts:
        yield f"Documents that are cropped to the length of a sequence: {', '.join(counts)}."


def _sample_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    sample = _by_split(facts, "tokenizer_sample")
    if {"characters", "of"} <= sample.keys():
        yield f"The tokenizer was trained on the first {sample['characters']:,} of {sample['of']:,} characters."


def _overlap_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    sample = _by_split(facts, "overlap_sample")
    where = f"{sample['tokens']:,} of {sample['of']:,} training tokens" if sample else "the training split"
    for split, share in _by_split(facts, "overlap").items():
        if share is not None and share > NOTABLE:
            yield (
                f"{_percent(share)} of the 64-token windows of {split} occur verbatim in {where}, "
                "so memorization lowers the loss."
            )


def _unknown_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    shares = {name: share for name, share in _by_split(facts, "unknown").items() if share > NOTABLE}
    if shares:
        listed = ", ".join(f"{_percent(share)} of {name}" for name, share in shares.items())
        texts = ", ".join(map(repr, _by_split(facts, "commonest_unknown")))
        yield f"Unknown tokens: {listed}. The commonest are for {texts}."


def _escape_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    sizes = _by_split(facts, "bytes")
    for split, bits in _by_split(facts, "escape_bits").items():
        rate = bits / sizes[split] if bits and sizes.get(split) else 0.0
        if bits is None and _by_split(facts, "cropped").get(split):
            yield f"{split}/bits_per_byte is not measured, because documents of {split} are cropped."
        elif bits is None:
            yield f"{split}/bits_per_byte is not measured, because the tokenizer loses part of the text, or changes it."
        elif rate > NOTABLE * 8:
            yield (
                f"{split}/bits_per_byte includes {rate:.2g} for characters that do not occur in the training split. "
                f"{split}/loss does not distinguish these characters."
            )


def _by_split(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
