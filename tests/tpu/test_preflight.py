"""Preflights with the real TPU compiler, on a machine without a TPU. Each program takes seconds to compile."""

import sys
from pathlib import Path

import pytest
from tests.tpu.conftest import NEEDS_LIBTPU, STUDY

from taetpu.core.chips import parse_slice
from taetpu.spec.loading import load_study
from taetpu.tpu import compile_client
from taetpu.tpu.group_plan import plan_group
from taetpu.tpu.remedies import list_remedies
from taetpu.train.layout import group_runs, parse_packing
from taetpu.train.model_cost import flops_per_token

pytestmark = [pytest.mark.slow, NEEDS_LIBTPU]


@pytest.mark.nightly
def test_layers_in_a_scan_count_by_its_length(compile_study) -> None:
    """Twelve layers are a scan of length 12, forward and backward, within one over two microbatches.

    The compiler's own totals count a loop's body once, so twice the layers would cost the same.
    """
    twelve, more = (
        compile_study("v5e-1", sets=[f"model.num_layers={layers}", "train.accumulate=2"])[0]["programs"][0]
        for layers in (12, 24)
    )
    assert (twelve["loops"], more["loops"]) == ([2, 12, 12], [2, 24, 24])
    assert more["compiler_seconds"] > 1.8 * twelve["compiler_seconds"]
    assert more["bytes"] > 1.8 * twelve["bytes"]


def test_flops_are_those_of_the_model(compile_study, tmp_path: Path) -> None:
    """The step has the model's matmuls and no others; the first layer needs no gradient of its input."""
    (found,) = compile_study("v5e-1")[0]["programs"]
    study = load_study(tmp_path / "small.yaml")
    run = study.runs()[0]
    source = study.sources.prepare(run.config)
    model = flops_per_token(run.config.model, source.vocab_size, source.seq_len) * 4 * 64 * found["width"]
    assert found["flops"] == pytest.approx(model, rel=0.05)


@pytest.mark.nightly
def test_splash_attention_is_in_the_flops_and_the_upper_end(compile_study) -> None:
    """Splash has 9 matmuls for each of the 10 of 16 blocks that are not fully masked, plain attention 6 for all."""
    sets, off = ["task.seq_len=2048", "train.batch_size=1", "train.compute.remat=none"], parse_packing("off")
    splash, plain = (
        compile_study("v5e-1", sets=[*sets, f"train.compute.attention={path}"], packing=off)[0]["programs"][0]
        for path in ("splash", "plain")
    )
    block = 2 * 2 * 512 * 512 * 64  # of each of two heads
    assert splash["flops"] > 9 * 10 * block
    assert splash["flops"] == pytest.approx(plain["flops"] + (9 * 10 - 6 * 16) * block, rel=0.02)
    assert splash["compiler_seconds"] > splash["roofline_seconds"]
    assert 0 < splash["utilisation"][0] < splash["utilisation"][1] <= 1
    assert any("splash" in text for text in splash["missing"])


@pytest.mark.nightly
def test_packs_are_spread_over_chips_and_memory_grows_with_their_width(compile_study) -> None:
    eight = STUDY.replace("seeds: 2", "seeds: 8")
    (one,), (slice_,) = (compile_study(name, text=eight)[0]["programs"] for name in ("v5e-1", "v5e-8"))
    assert (one["width"], one["devices"], slice_["width"], slice_["devices"]) == (8, 1, 8, 8)
    assert slice_["flops"] * 8 == one["flops"]
    assert 4 < one["hbm"]["arguments"] / slice_["hbm"]["arguments"] <= 8


def test_program_that_reads_a_table_does_not_hold_the_text(compile_study, tmp_path: Path) -> None:
    """The text has 40,000 windows of 65 tokens, and the table 64 steps of 4 windows for each of two runs."""
    (tmp_path / "words.txt").write_text("to be or not to be " * 150_000)
    text = STUDY.replace("{kind: copy, seq_len: 64, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}",
                         "{kind: text, source: words.txt, seq_len: 64}")  # fmt: skip
    resident, host = (
        compile_study("v5e-1", text=text, sets=[f"train.compute.feed={feed}"])[0]["programs"][0]
        for feed in ("resident", "host")
    )
    assert (resident.get("feed"), host["feed"]) == (None, "host")
    assert resident["flops"] == host["flops"]
    saved = resident["hbm"]["arguments"] - host["hbm"]["arguments"]
    assert saved > 40_000 * 0.9 * 65 * 4 - 64 * 4 * 2 * 128 * 4


def test_answers_are_cached(compile_study, monkeypatch) -> None:
    first = compile_study("v5e-1")
    monkeypatch.setattr(compile_client, "child_command", lambda module: [sys.executable, "-c", "raise SystemExit(7)"])
    assert compile_study("v5e-1") == first
    # Another program must be compiled, which reveals the broken compiler.
    (other,) = compile_study("v5e-1", sets=("model.dim=64",))[0]["programs"]
    assert "the compiler crashed" in other["error"]


PLUGIN = """\
import os
from taetpu.plugin import Component, Identity, register


@register("scores", "crash")
class Crash(Component):
    def init(self, dims, *, key):
        if "ALLOW_MULTIPLE_LIBTPU_LOAD" in os.environ:  # in the compiler's process
            os._exit(9)
        return Identity()
"""


def test_a_crash_of_the_compiler_affects_one_program_only(compile_study, tmp_path: Path) -> None:
    (tmp_path / "idea.py").write_text(PLUGIN)
    text = STUDY.replace("num_heads: 2}", "num_heads: 2, scores: crash}")
    text += "plugins: [idea.py]\narms: {plain: {model.mixer.scores: none}}\n"
    found = {one["arms"][0]: one for one in compile_study("v5e-1", text=text)[0]["programs"]}
    assert "the compiler crashed" in found["baseline"]["error"]
    assert found["plain"]["hbm"]["needed"] > 0


@pytest.mark.nightly
def test_a_program_that_does_not_fit_has_buffers_and_a_remedy_that_compiles(compile_study) -> None:
    text = STUDY.replace("batch_size: 4", "batch_size: 64, compute: {remat: none}").replace("seeds: 2", "seeds: 1")
    text = text.replace("dim: 128, num_layers: 1", "dim: 2048, num_layers: 4").replace("num_heads: 2", "num_heads: 8")
    text = text.replace("seq_len: 64", "seq_len: 1000")  # attention has no kernel for this length
    (refused,) = compile_study("v5e-1", text=text)[0]["programs"]
    large = refused["too_large"]
    assert large["needed"] > large["available"]
    assert any("ffn: GLU" in one["what"] for one in large["largest"])
    (fitting,) = compile_study("v5e-1", text=text, sets=[large["remedy"].removeprefix("--set ")])[0]["programs"]
    assert fitting["hbm"]["needed"] == large["needs"] < fitting["hbm"]["available"]


def test_remedies_keep_model_and_batch_size(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    study = load_study(tmp_path / "small.yaml")
    tpu = parse_slice("v5e-1")
    (members,) = group_runs(study.runs())
    plan = plan_group(tpu, members, study.sources.prepare(members.runs[0].config), parse_packing("off"))
    found = list(list_remedies(plan, tpu))
    assert [setting for setting, _ in found] == [
        "train.accumulate=2",
        "train.compute.remat=dots",
        "train.compute.remat=full",
        "train.accumulate=4",
    ]
    for _, changed in found:
        assert changed.first.config.model == plan.first.config.model
        assert changed.first.config.train.batch_size == 4
