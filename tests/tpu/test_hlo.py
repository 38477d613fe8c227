"""Costs from a program's text: loops by their trip counts, memory with padded tiles."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.tpu.hlo import Cost, padded_bytes, parse

CONDITION = """\
%{name} (p: (s32[], f32[8,128])) -> pred[] {{
  %p = (s32[], f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[]{{:T(128)}} {count}
  ROOT %compare.1 = pred[] compare(%i, %n), direction=LT
}}
"""
PROGRAM = """\
HloModule jit_step

{inner_condition}
{outer_condition}
%inner (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %p = (s32[], f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %x = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%p), index=1
  %y = f32[8,128]{{1,0:T(8,128)}} fusion(%x), kind=kLoop, calls=%square, backend_config={{"estimated_cycles":"100"}}
  ROOT %t = (s32[], f32[8,128]{{1,0:T(8,128)}}) tuple(%i, %y)
}}

%square (x: f32[8,128]) -> f32[8,128] {{
  %x = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %m = f32[8,128]{{1,0:T(8,128)}} multiply(%x, %x), backend_config={{"estimated_cycles":"7"}}
}}

%outer (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %p = (s32[], f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %w = (s32[], f32[8,128]{{1,0:T(8,128)}}) while(%p), condition=%inner_condition, body=%inner
  %z = f32[8,128]{{1,0:T(8,128)S(1)}} copy(%v), backend_config={{"estimated_cycles":"30"}}
  ROOT %t = (s32[], f32[8,128]{{1,0:T(8,128)}}) tuple(%i, %z)
}}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %c = f32[8,128]{{1,0:T(8,128)}} copy(%a), backend_config={{"estimated_cycles":"5000"}}
  %w = (s32[], f32[8,128]{{1,0:T(8,128)}}) while(%c), condition=%outer_condition, body=%outer
  ROOT %r = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%w), index=1
}}
"""
ARRAY = 8 * 128 * 4


def program(inner: int | None, outer: int | None) -> str:
    def condition(name: str, rounds: int | None) -> str:
        return CONDITION.format(
            name=name, count="get-tuple-element(%p), index=2" if rounds is None else f"constant({rounds})"
        )

    return PROGRAM.format(
        inner_condition=condition("inner_condition", inner), outer_condition=condition("outer_condition", outer)
    )


@pytest.mark.parametrize("rounds", [1, 12, 64])
def test_loop_cost_is_multiplied_by_the_trip_count(rounds: int) -> None:
    """The loop over steps has no constant: one iteration is the step; the code before it is not counted."""
    module = parse(program(rounds, None))
    assert module.loops == {"inner": rounds, "outer": None}
    assert module.step == Cost(cycles=rounds * 100 + 30, bytes=rounds * 2 * ARRAY)


def test_a_program_without_a_loop_over_steps_counts_in_full() -> None:
    assert parse(program(3, 2)).step.cycles == 5000 + 2 * (3 * 100 + 30)


def test_fused_operations_count_once_and_vector_memory_not_at_all() -> None:
    """A fusion's cycles include those inside it; an array in vector memory (`S(1)`) causes no HBM traffic."""
    step = parse(program(1, None)).step
    assert (step.cycles, step.bytes) == (130, 2 * ARRAY)


SLICED = """\
HloModule jit_step

%take (s: f32[12,8,128], i: s32[]) -> f32[8,128] {
  %s = f32[12,8,128]{2,1,0:T(8,128)} parameter(0)
  %i = s32[] parameter(1)
  %d = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%s, %i), dynamic_slice_sizes={1,8,128}
  ROOT %b = f32[8,128]{1,0:T(8,128)} bitcast(%d)
}

%put (s: f32[12,8,128], x: f32[1,8,128], i: s32[]) -> f32[12,8,128] {
  %s = f32[12,8,128]{2,1,0:T(8,128)} parameter(0)
  %x = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = f32[12,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%s, %x, %i)
}

ENTRY %main (s: f32[12,8,128], i: s32[]) -> f32[12,8,128] {
  %s = f32[12,8,128]{2,1,0:T(8,128)} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[8,128]{1,0:T(8,128)} fusion(%s, %i), kind=kLoop, calls=%take
  %y = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%x)
  ROOT %r = f32[12,8,128]{2,1,0:T(8,128)} fusion(%s, %y, %i), kind=kLoop, calls=%put
}
"""


def test_slicing_moves_only_the_slice() -> None:
    """One layer of a stacked array is read and written, not the whole array at every layer."""
    scalar = 4
    assert parse(SLICED).step.bytes == 4 * ARRAY + 2 * scalar


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (("f32", "8,128", "1,0:T(8,128)"), 4096),
        (("f32", "3,40", "1,0:T(8,128)"), 4096),
        (("f32", "40,3", "0,1:T(8,128)"), 4096),  # transposed layout
        (("bf16", "2,9,168", "2,1,0:T(8,128)(2,1)"), 2 * 2 * 16 * 256),
        (("f32", "5", "0:T(128)"), 512),
        (("pred", "", ":T(512)"), 1),
        (("s32", "7,7", ""), 196),
    ],
)
def test_tiles_are_padded(array: tuple[str, str, str], size: int) -> None:
    assert padded_bytes(*array) == size


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_padding_is_less_than_a_tile_per_axis(sizes: list[int]) -> None:
    order = ",".join(str(axis) for axis in reversed(range(len(sizes))))
    padded = padded_bytes("f32", ",".join(map(str, sizes)), f"{order}:T(8,128)")
    assert 4 * math.prod(sizes) <= padded < 4 * math.prod(size + 127 if i == 0 else size + 7 if i == 1 else size
                                                          for i, size in enumerate(reversed(sizes)))  + 1  # fmt: skip


def test_text_without_an_entry_computation_is_rejected() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("HloModule empty\n")
