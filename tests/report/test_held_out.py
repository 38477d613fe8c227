"""Sentences about evaluation text: only notable shares, and the arms that they hold for."""

from taetpu.report.held_out import NOTABLE, describe_held_out

CLEAN = {"overlap": {"val": NOTABLE, "test": None}, "bytes": {"val": 800}, "escape_bits": {"val": 0.0, "test": 0.0}}


def test_nothing_is_said_of_what_is_not_notable_or_not_known():
    assert describe_held_out({"baseline": CLEAN, "other": {}, "odd": {"overlap": 0.5}}) == []


def test_arms_are_named_where_it_does_not_hold_for_all():
    leaky = {**CLEAN, "overlap": {"val": 0.123, "test": 0.4}}
    everywhere = describe_held_out({"baseline": leaky, "other": leaky})
    assert [sentence.split(" occur")[0] for sentence in everywhere] == [
        "12 % of the 64-token windows of val",
        "40 % of the 64-token windows of test",
    ]
    assert describe_held_out({"baseline": CLEAN, "other": leaky}) == [f"other: {sentence}" for sentence in everywhere]


def test_what_no_token_expresses():
    for bits, said in ((400.0, "val/bits_per_byte includes 0.5 "), (None, "val/bits_per_byte is not measured")):
        (sentence,) = describe_held_out({"baseline": {**CLEAN, "escape_bits": {"val": bits}}})
        assert sentence.startswith(said)
