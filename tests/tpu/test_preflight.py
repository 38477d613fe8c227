"""What the real TPU compiler says, on a machine without one. Each program takes seconds to compile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tpu.conftest import NEEDS_LIBTPU, STUDY

from taetpu.core.chips import resolve
from taetpu.spec.loading import load_study
from taetpu.tpu import compiler
from taetpu.tpu.group_plan import plan_group
from taetpu.tpu.remedies import remedies
from taetpu.train.count import flops_per_token
from taetpu.train.layout import group, parse_packing

pytestmark = [pytest.mark.slow, NEEDS_LIBTPU]


def test_layers_under_a_loop_count_as_often_as_they_run(asked) -> None:
    """Twelve layers are a loop of twelve rounds, forward and backward, within one of two microbatches. Were a loop's
    body counted once, as the compiler's own totals do, twice the layers would cost the same.
    """
    twelve, more = (
        asked("v5e-1", sets=[f"model.num_layers={layers}", "train.accumulate=2"])[0]["programs"][0]
        for layers in (12, 24)
    )
    assert (twelve["loops"], more["loops"]) == ([2, 12, 12], [2, 24, 24])
    assert more["compiler_seconds"] > 1.8 * twelve["compiler_seconds"]
    assert more["bytes"] > 1.8 * twelve["bytes"]
    assert not any("rounds" in hazard for found in (twelve, more) for hazard in found["hazards"])


def test_products_are_those_of_the_model(asked, tmp_path: Path) -> None:
    """The traced step has the model's products and no others; the first layer's need no gradient of their input's."""
    (found,) = asked("v5e-1")[0]["programs"]
    study = load_study(tmp_path / "small.yaml")
    run = study.runs()[0]
    source = study.sources.prepare(run.config)
    model = flops_per_token(run.config.model, source.vocab_size, source.seq_len) * 4 * 64 * found["width"]
    assert found["flops"] == pytest.approx(model, rel=0.05)


def test_attentions_kernels_are_in_the_products_and_the_upper_end(asked) -> None:
    """Of 16 by 16 blocks 136 are not masked whole; forward and backward pass have nine products of each, the plain path
    six of all.
    """
    sets = ["task.seq_len=8192", "train.batch_size=1", "train.compute.remat=none"]
    splash, plain = (
        asked("v5e-1", sets=[*sets, f"train.compute.attention={path}"], packing=parse_packing("off"))[0]["programs"][0]
        for path in ("splash", "plain")
    )
    block = 2 * 2 * 512 * 512 * 64  # of each of two heads
    assert splash["flops"] > 9 * (16 * 17 // 2) * block
    assert splash["flops"] == pytest.approx(plain["flops"] + (9 * 136 - 6 * 256) * block, rel=0.02)
    assert splash["compiler_seconds"] > splash["roofline_seconds"]
    assert 0 < splash["utilisation"][0] < splash["utilisation"][1] <= 1
    assert any("splash" in text for text in splash["missing"])


def test_memory_grows_with_what_a_device_holds(asked) -> None:
    eight = STUDY.replace("seeds: 2", "seeds: 8")
    alone, wide = (
        asked("v5e-1", packing=parse_packing(width), text=eight)[0]["programs"][0]["hbm"]["arguments"]
        for width in (1, 8)
    )
    assert 4 < wide / alone <= 8


def test_runs_are_spread_over_chips_and_each_holds_its_own(asked) -> None:
    eight = STUDY.replace("seeds: 2", "seeds: 8")
    (one,), (slice_,) = (asked(name, text=eight)[0]["programs"] for name in ("v5e-1", "v5e-8"))
    assert (one["width"], one["devices"], slice_["width"], slice_["devices"]) == (8, 1, 8, 8)
    assert slice_["flops"] * 8 == one["flops"]


def test_what_was_said_is_not_asked_again(asked, monkeypatch) -> None:
    first = asked("v5e-1")
    monkeypatch.setattr(compiler, "child_command", lambda module: [sys.executable, "-c", "raise SystemExit(7)"])
    assert asked("v5e-1") == first
    # Another program has to be asked for, and then the broken compiler shows.
    (other,) = asked("v5e-1", sets=("model.dim=64",))[0]["programs"]
    assert "the compiler ended" in other["error"]


PLUGIN = """\
import os
import time
import equinox as eqx
from taetpu.plugin import Component, Fixed, register


@register("scores", "clocked")
class Clocked(Component):
    def init(self, dims, *, key):
        BODY


class Times(eqx.Module):
    factor: float = eqx.field(static=True)

    def __call__(self, scores, ctx):
        return scores * self.factor
"""


def with_plugin(tmp_path: Path, body: str) -> str:
    (tmp_path / "idea.py").write_text(PLUGIN.replace("BODY", body))
    own = STUDY.replace("num_heads: 2}", "num_heads: 2, scores: clocked}")
    return own + "plugins: [idea.py]\n"


def test_a_program_that_differs_each_time_is_told(asked, tmp_path: Path) -> None:
    text = with_plugin(tmp_path, "return Times(1.0 + time.time_ns() % 10**9 / 10**12)")
    (found,) = asked("v5e-1", text=text)[0]["programs"]
    assert any("another one each time" in hazard for hazard in found["hazards"])
    (steady,) = asked("v5e-1", text=with_plugin(tmp_path, "return Times(1.5)"))[0]["programs"]
    assert not any("another one each time" in hazard for hazard in steady["hazards"])


def test_a_compiler_that_dies_takes_no_other_program_with_it(asked, tmp_path: Path) -> None:
    body = "os._exit(9) if 'ALLOW_MULTIPLE_LIBTPU_LOAD' in os.environ else None\n        return Times(1.0)"
    text = with_plugin(tmp_path, body) + "arms: {plain: {model.mixer.scores: none}}\n"
    found = {one["arms"][0]: one for one in asked("v5e-1", text=text)[0]["programs"]}
    assert "the compiler ended" in found["baseline"]["error"]
    assert found["plain"]["hbm"]["needed"] > 0


def test_the_compilers_figure_the_largest_buffers_and_a_setting_that_compiles(tmp_path: Path) -> None:
    """As a user asks: by the command, of an arm that is too large beside one that is not."""
    file = tmp_path / "large.yaml"
    text = STUDY.replace("batch_size: 4", "batch_size: 64, compute: {remat: none}")
    text = text.replace("num_heads: 2", "num_heads: 8")
    text = text.replace("seq_len: 64", "seq_len: 1000")  # for which attention has no kernel
    file.write_text(text + "arms: {large: {model.dim: 2048, model.num_layers: 4}}\n")
    command = [sys.executable, "-m", "taetpu", "plan", str(file), "--root", str(tmp_path), "--tpu", "v5e-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    refused = done.stderr
    assert "large: a run alone needs " in refused
    assert "GiB of 15.75 GiB on a device of v5litepod-1, says the compiler" in refused
    assert "ffn: SwiGLU" in refused  # whose results are among the largest buffers
    (advised,) = [line for line in refused.splitlines() if "this compiles: --set " in line]
    setting = advised.split("--set ")[1].split(",")[0]
    again = subprocess.run([*command, "--set", setting, "--json"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    programs = json.loads(again.stdout)["tpu"][0]["programs"]
    assert [one["arms"] for one in programs] == [["baseline"], ["large"]]
    assert all(one["hbm"]["needed"] < one["hbm"]["available"] for one in programs)


def test_remedies_keep_what_is_trained(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    study = load_study(tmp_path / "small.yaml")
    tpu = resolve("v5e-1")
    (members,) = group(study.runs())
    planned = plan_group(tpu, members, study.sources.prepare(members.runs[0].config), parse_packing("off"))
    found = list(remedies(planned, tpu))
    assert [one.setting for one in found] == [
        "train.accumulate=2",
        "train.compute.remat=dots",
        "train.compute.remat=full",
        "train.accumulate=4",
    ]
    for one in found:
        assert one.planned.first.config.model == planned.first.config.model
        assert one.planned.first.config.train.batch_size == 4
