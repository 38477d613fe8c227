"""Small files of items in the formats of HellaSwag, ARC, BLiMP, LAMBADA and WinoGrande, and of prompts."""

import json
from pathlib import Path

TEXT = "the quick brown fox jumps over the lazy dog. a lazy dog sleeps under the old tree. "
ITEMS = {
    "hellaswag": (
        "multiple-choice",
        [
            {"ctx": "the quick", "endings": ["brown fox jumps", "tree", "dog sleeps over", "lazy lazy"], "label": 0},
            {"ctx": "a lazy dog", "endings": ["fox", "sleeps under", "the", "tree. the quick"], "label": "1"},
            {"ctx": "over the", "endings": ["old é tree", "quick", "lazy dog. a", "fox"], "label": 2},
            {"ctx": "under", "endings": ["a", "the old tree", "dog", "brown"], "label": 3},
        ],
    ),
    "arc": (
        "multiple-choice",
        [
            {"id": "1", "question": "Who jumps?", "choices": {"text": ["the fox", "a tree", "the old dog"],
             "label": ["A", "B", "C"]}, "answerKey": "A"},
            {"id": "2", "question": "Who sleeps?", "choices": {"text": ["quick", "a lazy dog", "fox", "the"],
             "label": ["1", "2", "3", "4"]}, "answerKey": "2"},
        ],
    ),
    "blimp": (
        "minimal-pairs",
        [
            {"sentence_good": "the fox jumps over the dog.", "sentence_bad": "fox the jumps over dog the.",
             "linguistics_term": "order", "UID": "order_1"},
            {"sentence_good": "a dog sleeps.", "sentence_bad": "a dog sleep.",
             "linguistics_term": "agreement", "UID": "agreement_1"},
            {"sentence_good": "the old tree", "sentence_bad": "tree the old",
             "linguistics_term": "order", "UID": "order_2"},
        ],
    ),
    "winogrande": (
        "cloze",
        [
            {"sentence": "the quick _ jumps over the lazy dog", "option1": "fox", "option2": "tree", "answer": "1"},
            {"sentence": "a lazy _ sleeps under", "option1": "fox", "option2": "dog", "answer": "2"},
        ],
    ),
    "prompts": (
        "generation",
        [{"prompt": "the quick brown", "answer": "fox jumps over the lazy dog"}, {"prompt": "a lazy", "answer": "fox"}],
    ),
    "lambada": (
        "last-word",
        [{"text": "the quick brown fox"}, {"text": "over the lazy dog"}, {"text": "under the old fox"}],
    ),
}  # fmt: skip
"""The kind of score and the rows of each format."""


def write_items(folder: Path) -> None:
    """Write a file `FORMAT.jsonl` for each format."""
    for name, (_, rows) in ITEMS.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
