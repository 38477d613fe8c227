"""Sentences on the evaluation text mention only notable shares, with the arms they apply to."""

from taetpu.report.evaluation_text import NOTABLE, describe_evaluation_text

CLEAN = {"overlap": {"val": NOTABLE, "test": None}, "bytes": {"val": 800}, "escape_bits": {"val": 0.0, "test": 0.0}}


def test_small_or_unknown_shares_give_no_sentence():
    assert describe_evaluation_text({"baseline": CLEAN, "other": {}, "odd": {"overlap": 0.5}}) == []


def test_sentences_name_the_arms_unless_they_apply_to_all():
    leaky = {**CLEAN, "overlap": {"val": 0.123, "test": 0.4}}
    everywhere = describe_evaluation_text({"baseline": leaky, "other": leaky})
    assert [sentence.split(" occur")[0] for sentence in everywhere] == [
        "12 % of the 64-token windows of val",
        "40 % of the 64-token windows of test",
    ]
    assert describe_evaluation_text({"baseline": CLEAN, "other": leaky}) == [
        f"other: {sentence}" for sentence in everywhere
    ]


def test_the_sample_that_overlap_was_searched_in_is_named():
    leaky = {"overlap": {"val": 0.5}, "overlap_sample": {"tokens": 16_777_216, "of": 2_000_000_000}}
    (sentence,) = describe_evaluation_text({"baseline": leaky})
    assert [value for value in ("50 %", "16,777,216", "2,000,000,000") if value not in sentence] == []


def test_unknown_tokens_are_named():
    facts = {"unknown": {"train": NOTABLE / 2, "val": 0.25}, "commonest_unknown": {"\\xdf": 40, "a": 1}}
    (sentence,) = describe_evaluation_text({"baseline": facts})
    assert [value in sentence for value in ("25 % of val", "train", "xdf", "'a'")] == [True, False, True, True]
    assert describe_evaluation_text({"baseline": {**facts, "unknown": {"val": NOTABLE}}}) == []


def test_characters_without_a_token_are_described():
    for bits, start in ((400.0, "val/bits_per_byte includes 0.5 "), (None, "val/bits_per_byte is not measured")):
        (sentence,) = describe_evaluation_text({"baseline": {**CLEAN, "escape_bits": {"val": bits}}})
        assert sentence.startswith(start)
