"""Programs for NVIDIA GPUs, lowered without one, and compiled where jax's plug-in for CUDA is installed.

XLA's program for a GPU shows which arrays exist. That for a CPU does not, because it has other fusions and computes
bfloat16 in float32.
"""

import re
from collections import Counter

import pytest
from benchmarks.gpu_levers import DEFAULTS, OPTIONS, Lever
from benchmarks.gpu_programs import assume_cudnn, build, compile_step, find_device, read_step

SIZES = {"dim": 64, "layers": 9, "heads": 1, "seq": 128, "batch": 3, "vocab": 500}
LOGITS = r"3x128x5\d\d|384x5\d\d"  # shapes of the logits of all tokens, padded or not
MATRICES = 6  # of a layer: q, k, v, out, up, down


@pytest.fixture(scope="module")
def lowered():
    """Return the step lowered for CUDA with the default options and with all levers, with names of types in short."""
    assume_cudnn()

    def text(compute):
        program, shapes = build(SIZES, compute)
        return program.advance.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()

    return {"defaults": text({}), "levers": text(OPTIONS)}


def results(text: str, operation: str) -> list[str]:
    """Return the types of the results of an operation."""
    return re.findall(rf"stablehlo\.{operation}\b.*-> tensor<(\S+)>", text)


@pytest.mark.slow
def test_layers_are_in_two_loops_or_in_none(lowered):
    """Forward and backward. A dispatch is one program, and the loop over its steps is the only other difference."""
    loops = {name: text.count("stablehlo.while") for name, text in lowered.items()}
    assert loops["defaults"] - loops["levers"] == 2
    assert {name: text.count("module @") for name, text in lowered.items()} == {"defaults": 1, "levers": 1}


@pytest.mark.slow
def test_products_write_the_logits_in_the_dtype_that_is_asked_for(lowered):
    written = {
        name: [kind for kind in results(text, "dot_general") if re.fullmatch(rf"(?:1x)?(?:{LOGITS})x\w+", kind)]
        for name, text in lowered.items()
    }
    assert [kind.rpartition("x")[2] for kind in written["defaults"]] == ["f32"]
    assert [kind.rpartition("x")[2] for kind in written["levers"]] == ["bf16"]
    assert "x512xbf16" in written["levers"][0]  # 500 outputs, padded to a multiple of 128


@pytest.mark.slow
def test_nothing_is_scattered_into_an_array_of_the_logits_size(lowered):
    for text in lowered.values():
        assert not [kind for kind in results(text, "scatter") if re.search(rf"(?:{LOGITS})x", kind)]


@pytest.mark.slow
def test_each_weight_is_cast_once_a_step(lowered):
    """By default, each layer of the loop casts its weights. With `cast: step`, a cast is of all layers."""
    casts = {
        name: Counter(re.findall(r"stablehlo\.convert .*\(tensor<([\dx]+)xf32>\) -> tensor<\S+xbf16>", text))
        for name, text in lowered.items()
    }
    shapes = ("64x64", "64x256", "256x64")
    stacked, single = (
        {name: sum(found[layers + shape] for shape in shapes) for name, found in casts.items()} for layers in ("9x", "")
    )
    assert stacked == {"defaults": 0, "levers": MATRICES}
    assert single == {"defaults": MATRICES, "levers": 0}


@pytest.mark.slow
def test_attention_is_one_call_forward_and_one_backward(lowered):
    for text in lowered.values():
        assert Counter(re.findall(r"custom_call @(__cudnn\S+?)\(", text)) == {
            "__cudnn$fmhaSoftmax": 1, "__cudnn$fmhaSoftmaxBackward": 1,
        }  # fmt: skip


HLO = """
%fused_transpose (p: f32[2,3]) -> f32[3,2] {
  ROOT %t = f32[3,2]{1,0} transpose(%p), dimensions={1,0}
}

%layers (a: bf16[9,4]) -> bf16[9,4] {
  %one = bf16[9,4]{1,0} fusion(%a), kind=kLoop, calls=%fused_dynamic_update_slice.1
  %z = (bf16[2,1,8,4]{3,1,2,0}, u8[0]{0}) custom-call(%one), custom_call_target="__cudnn$fmhaSoftmax"
}

%step (a: bf16[9,4]) -> bf16[9,4] {
  %l = bf16[9,4]{1,0} while(%a), condition=%c, body=%layers, backend_config={"known_trip_count":{"n":"9"}}
  %b = f32[3,2]{1,0} bitcast(%l)
  ROOT %f = f32[3,2]{1,0} fusion(%b), kind=kInput, calls=%fused_transpose
}

ENTRY %main (a: bf16[9,4]) -> bf16[9,4] {
  ROOT %s = bf16[9,4]{1,0} while(%a), condition=%d, body=%step
}
"""


def test_kernels_of_loops_are_counted_for_each_iteration():
    step = read_step(HLO, 7)
    assert (step.kernels, step.stacked, step.transposes, step.temporary) == (19, 9, 1, 7)
    assert step.attention == {"bf16[2,1,8,4]{3,1,2,0}"}
    assert step.largest["bf16[9,4]"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize("position", ["learned", "rope"])
def test_the_program_of_a_gpu_has_no_waste_that_was_seen_before(position):
    """Queries, keys and values are computed in the layout of cuDNN: `{3,1,2,0}` is (batch, seq, head, head_dim)."""
    device = find_device()
    if device is None:
        pytest.skip("jax's plug-in for CUDA is not installed")
    sizes = {**SIZES, "layers": 2, "heads": 2, "dim": 128, "vocab": 5000}
    plain = compile_step(sizes, DEFAULTS, device, position=position)
    narrow = compile_step(sizes, Lever("", {"logits": "bfloat16", "pad_vocab": 128}), device, position=position)
    for step, dtypes in ((plain, {"f32", "bf16"}), (narrow, {"bf16"})):
        assert {layout.partition("{")[2] for layout in step.attention} == {"3,1,2,0}"}
        of_logits = [name for name in step.largest if re.search(r"(?:384|128),5\d\d\d\]", name)]
        assert {name.partition("[")[0] for name in of_logits} == dtypes
        assert step.transposes <= 3  # of the embedding and its gradient, never of heads
    assert narrow.temporary < plain.temporary
