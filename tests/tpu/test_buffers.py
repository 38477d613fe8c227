"""Names of the largest buffers, from a compiler's dump."""

from pathlib import Path

import pytest

from taetpu.tpu.buffers import KEPT, display_path, largest_buffers

TEXT = """\
HloModule jit_advance

FileNames
1 "/somewhere/taetpu/nn/attention_kernels.py"
3 "/somewhere/taetpu/nn/norm.py"
2 "/somewhere/taetpu/nn/stack.py"

FunctionNames
1 "Plain.read"
2 "Stack.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1}
2 {file_name_id=2 function_name_id=2 line=1}
3 {file_name_id=3 function_name_id=2 line=1}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=1}

%scores (p: f32[8,8]) -> (f32[8], f32[8,8]) {
  %p = f32[8,8]{1,0} parameter(0)
  %sub.1 = f32[8,8]{1,0} subtract(%p, %p), metadata={op_name="jit(advance)/sub" stack_frame_id=2}
  %small.1 = f32[8]{0} add(%q, %q), metadata={op_name="jit(advance)/add" stack_frame_id=3}
  %kept.1 = f32[8,8]{1,0} exponential(%sub.1), metadata={op_name="jit(advance)/exp" stack_frame_id=1}
  ROOT %tuple.1 = (f32[8], f32[8,8]) tuple(%sum.1, %kept.1)
}

ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %fusion.1 = (f32[8], f32[8,8]{1,0}) fusion(%a), kind=kOutput, calls=%scores
  %copy.1 = f32[8,8]{0,1} copy(%fusion.1)
  %own.1 = f32[8,8]{1,0} add(%a, %a), metadata={op_name="jit(advance)/add" stack_frame_id=1}
  %unknown.1 = f32[8,8]{1,0} add(%copy.1, %a)
}
"""


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ("fusion.1{1}", "attention_kernels: Plain.read"),  # by what it fuses
        ("copy.1", "attention_kernels: Plain.read"),  # by what it copies
        ("own.1", KEPT),
        ("unknown.1", ""),
    ],
)
def test_a_temporary_is_named_after_the_function_that_computes_it(tmp_path: Path, operation: str, what: str) -> None:
    (tmp_path / "m.after_optimizations.txt").write_text(TEXT)
    report = f"allocation 1: size 256, preallocated-temp:\n value: <7 {operation} @0> (size=256,offset=0): f32[8,8]\n"
    (tmp_path / "m.after_optimizations-buffer-assignment.txt").write_text(report)
    (found,) = largest_buffers(tmp_path)
    assert (found.bytes, found.shape, found.what) == (256, "f32[8,8]", what)


def test_paths_of_the_state_are_shown_as_users_write_them() -> None:
    assert (
        display_path("model.stacks.0.block.ffn.up")
        == display_path("model.stacks[0].block.ffn.up")
        == "layers[0].block.ffn.up"
    )
