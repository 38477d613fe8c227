"""Owners and names: what belongs to different people never looks the same."""

import re

import pytest

from taetpu.cloud.spec import check_stack, label, stack_of

OWNERS = [
    "é",
    "ö",
    "",
    "-é-",
    "bob.smith",
    "bob smith",
    "Bob-Smith",
    "bob-smith",
    "bob_smith",
    "b" * 63,
    "b" * 64,
    "b" * 65,
]


def test_no_two_owners_have_the_same_label():
    labels = [label(owner) for owner in OWNERS]
    assert len(set(labels)) == len(OWNERS)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", one) for one in labels)


@pytest.mark.parametrize("owner", ["me", "bob-smith", "jo_doe", "9lives", "b" * 63])
def test_an_owner_that_is_a_label_stays_as_it_is(owner):
    assert label(owner) == owner


@pytest.mark.parametrize(
    ("owner", "told"), [("bob.smith", r"bob-smith-[0-9a-f]{6}"), ("Ada", r"ada-[0-9a-f]{6}"), ("é", r"x[0-9a-f]{6}")]
)
def test_another_keeps_what_of_it_can_be_read(owner, told):
    assert re.fullmatch(told, label(owner))
    assert label(label(owner)) == label(owner)


@pytest.mark.parametrize("owner", OWNERS)
def test_a_tpu_can_be_named_after_every_owner(owner):
    assert check_stack(stack_of(label(owner))).startswith("tpu-")


def test_the_name_of_a_tpu_without_a_study():
    assert (stack_of("me"), stack_of("jo_doe")) == ("tpu-me", "tpu-jo-doe")
