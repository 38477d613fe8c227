"""`check_component`: every kind of the package passes, and each planted fault is caught and named, with its line."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN, kinds
from taetpu.plugin import Component, Fixed, Hook, Identity, Metric, Number, named, project
from taetpu.testing import ComponentError, check_component
from taetpu.testing.slots import CHECKS

SETTINGS = {
    **{kind: {"seq_len": 12, "eval_size": 8} for kind in ("copy", "reverse", "sort", "histogram", "induction")},
    "text": {"source": "README.md", "seq_len": 12},
    "bpe": {"vocab_size": 280},
    "activation": {"site": "residual"},
}
EVERY = [(slot, kind) for slot in BUILTIN for kind in kinds(slot)]
QUICK = {("schedule", "cosine"), ("tokenizer", "char"), ("tokenizer", "bpe"), ("task", "copy")}


def test_every_slot_has_checks():
    assert set(CHECKS) == set(BUILTIN)


@pytest.mark.parametrize(
    ("slot", "kind"), [pytest.param(*k, marks=() if k in QUICK else pytest.mark.slow, id="/".join(k)) for k in EVERY]
)
def test_every_kind_of_the_package_passes(slot, kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    report = check_component(slot, kind, **SETTINGS.get(kind, {}))
    assert report.findings
    assert {finding.outcome for finding in report.findings} <= {"passed", "note"}


def failing(component: Component) -> dict[str, Any]:
    """The checks that a component fails, by name; their text names each."""
    with pytest.raises(ComponentError) as caught:
        check_component(component.slot, component)
    report = caught.value.report
    for finding in report.failed:
        assert f"\n{finding.check}: {finding.said}\n" in str(caught.value)
    return {finding.check: finding for finding in report.failed}


def line_of(owner: Any, text: str) -> str:
    """`file:line` of a line of this file, as a finding gives it."""
    lines, first = inspect.getsourcelines(owner)
    number = first + next(i for i, line in enumerate(lines) if text in line)
    return f"test_testing.py:{number}"


# --- faults that show without a model --------------------------------------------------------------------------------


class Wide(Component):
    slot: ClassVar[str] = "ffn"
    kind: ClassVar[str] = "wide"

    def init(self, dims, *, key):
        return WideFFN(dims.weight(named(key, "w"), dims.dim, 2 * dims.dim))


class WideFFN(eqx.Module):
    w: Any

    def __call__(self, x, ctx):
        return project(x, self.w)


def test_another_shape():
    (found,) = failing(Wide()).values()
    assert found.check == "shapes"
    assert found.said == (
        "given x (2, 8, 16) float32 in evaluation it gives (2, 8, 32) float32, expected (2, 8, 16) float32"
    )
    assert f"{line_of(WideFFN.__call__, 'def __call__')} in __call__" in found.where


class Precise(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "precise"

    def init(self, dims, *, key):
        return PreciseAfter(Fixed(2.0))


class PreciseAfter(eqx.Module):
    factor: Fixed

    def __call__(self, x, ctx):
        return x * self.factor.value


def test_another_type():
    found = failing(Precise())["shapes"]
    assert "given x (2, 8, 16) bfloat16 in evaluation it gives (2, 8, 16) float32" in found.said
    assert found.remedy == "end with .astype(x.dtype)"


class Noisy(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "noisy"

    def init(self, dims, *, key):
        return NoisyAfter()


class NoisyAfter(eqx.Module):
    def __call__(self, x, ctx):
        return x + jnp.asarray(np.random.standard_normal(x.shape), x.dtype)


def test_numbers_drawn_by_numpy():
    found = failing(Noisy())
    assert set(found) == {"repeats"}
    assert re.match(r"two calls with the same input differ by up to \d", found["repeats"].said)
    assert "ctx.key" in found["repeats"].remedy


class Counting(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "counting"

    def init(self, dims, *, key):
        return CountingAfter()


class CountingAfter(eqx.Module):
    calls: ClassVar[list[int]] = []

    def __call__(self, x, ctx):
        self.calls.append(1)
        return x * len(self.calls)


def test_state_kept_in_python():
    found = failing(Counting())
    assert set(found) == {"repeats"}
    assert "keep nothing between calls" in found["repeats"].remedy


class Branching(Component):
    slot: ClassVar[str] = "scores"
    kind: ClassVar[str] = "branching"
    factor: Number = 2.0
    early: bool = True

    def init(self, dims, *, key):
        if self.early and self.factor == 0:
            return Identity()
        return BranchingScores(Fixed(self.factor))


class BranchingScores(eqx.Module):
    factor: Fixed

    def __call__(self, scores, ctx):
        return scores * self.factor.value if self.factor.value > 1 else scores


@pytest.mark.parametrize(
    ("component", "check", "owner", "line"),
    [
        (Branching(early=False), "shapes", BranchingScores, "if self.factor.value > 1"),
        (Branching(factor=0.0), "numbers", Branching, "self.factor == 0"),
    ],
)
def test_a_branch_of_python_on_a_traced_number(component, check, owner, line):
    found = failing(component)
    assert set(found) == {check}
    assert found[check].said.startswith("TracerBoolConversionError")
    assert line_of(owner, line) in found[check].where
    assert "jnp.where" in found[check].remedy


class FixedKey(Component):
    slot: ClassVar[str] = "init"
    kind: ClassVar[str] = "fixed-key"

    def draw(self, dims, role, shape, *, key):
        return 0.02 * jax.random.normal(jax.random.key(0), shape)


def test_an_init_that_ignores_its_key():
    (found,) = failing(FixedKey()).values()
    assert (found.check, found.said) == ("draw", "a weight of role in is the same from two keys")


class Shorter(Hook):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "shorter"

    def batch(self, batch, now):
        return batch._replace(tokens=batch.tokens[:, :-1])


class Wild(Hook):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "wild"

    def batch(self, batch, now):
        return batch._replace(tokens=jnp.asarray(np.random.permutation(11), jnp.int32)[batch.tokens])


def test_a_hook_that_changes_shapes():
    found = failing(Shorter())["batch form"]
    assert found.said == "what batch gives at tokens: (2, 7) int32, expected (2, 8) int32, as it was given"
    assert line_of(Shorter, "def batch") in found.where


def test_a_hook_that_is_not_a_function_of_its_key():
    assert failing(Wild())["batch repeats"].said == "two calls of batch with one key differ"


class PerLayer(Metric):
    slot: ClassVar[str] = "metric"
    kind: ClassVar[str] = "per-layer"

    def measure(self, seen):
        return {"max": jnp.stack([jnp.abs(a).max() for a in jax.tree.leaves(seen.params)])}


class Nowhere(PerLayer):
    kind: ClassVar[str] = "nowhere"

    def sites(self):
        return ("residul",)


def test_a_metric_that_gives_a_vector():
    found = failing(PerLayer())["values"]
    assert re.match(r"metric 'per-layer' gives max of shape \(\d+,\), not a single number", found.said)


def test_a_metric_of_a_site_that_is_not_there():
    found = failing(Nowhere())["values"]
    assert found.said == "no site 'residul' in this model"
    assert "did you mean 'residual'?" in found.remedy


class Loose(Component):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "loose"


def test_a_class_of_another_base():
    found = failing(Loose())["form"]
    assert found.said == "Loose is not a Hook, as a hook must be"
    assert found.remedy == "class Loose(Hook), from taetpu.optim.hooks"


# --- faults that show in a model -------------------------------------------------------------------------------------


class Faulty(Component):
    """An after component with one fault, or all of them."""

    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "faulty"
    fault: str

    def init(self, dims, *, key):
        own = jax.random.key(0) if self.fault in ("start", "all") else key
        return FaultyAfter(jax.random.normal(own, (dims.dim,)), jnp.zeros(dims.dim), self.fault)


class FaultyAfter(eqx.Module):
    scale: Any
    unread: Any
    fault: str = eqx.field(static=True)

    def __call__(self, x, ctx):
        y = x * self.scale.astype(x.dtype)
        if self.fault not in ("gradients", "all"):
            y = y + self.unread.astype(x.dtype)
        if self.fault in ("causality", "all"):
            y = y + x.mean(1, keepdims=True)
        if self.fault in ("sequences", "all"):
            y = y + x[::-1]
        if self.fault in ("layers", "all"):
            y = y * (1 + (ctx.layer if isinstance(ctx.layer, int) else 0))
        return y


SAID = {
    "start": "parameter 'scale' is drawn, but starts the same from every seed and in every layer",
    "causality": r"the logits at position 0 change by up to [\d.]+ when only tokens after position 0 do",
    "sequences": r"a sequence's logits change by up to [\d.]+ when another one of its batch does",
    "gradients": "the gradient of layers.0.after.unread, layers.1.after.unread is zero everywhere",
    "layers": "layers under a scan differ from layers called one by one by up to",
}


def test_every_fault_is_told_at_once():
    found = failing(Faulty(fault="all"))
    for check, said in SAID.items():
        assert re.match(said, found[check].said)
        assert "test_testing.py:" in found[check].where
        assert found[check].remedy


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["start", "causality", "sequences", "gradients", "layers"])
def test_a_fault_fails_its_own_check_alone(fault):
    assert set(failing(Faulty(fault=fault))) == {fault}


@pytest.mark.slow
def test_without_a_fault_it_passes_and_the_report_says_so():
    report = check_component("after", Faulty(fault="none"))
    text = str(report)
    assert text.startswith("after 'faulty' (tests/test_testing.py)\n")
    assert all(f"  {finding.check}" in text for finding in report.findings)
    assert {finding.outcome for finding in report.findings} == {"passed"}


class Inert(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "inert"
    factor: Number = 2.0

    def init(self, dims, *, key):
        return Identity()


@pytest.mark.slow
def test_a_number_that_nothing_reads_is_named():
    report = check_component("after", Inert())
    assert report.outcome("idle numbers") == "note"
    assert "nothing reads factor" in str(report)


# --- optimizers ------------------------------------------------------------------------------------------------------


class Uphill(kinds("optimizer")["adamw"]):
    kind: ClassVar[str] = "uphill"

    def transform(self, lr, decayed):
        return super().transform(-lr, decayed)


@pytest.mark.slow
def test_an_optimizer_that_goes_uphill():
    found = failing(Uphill())
    assert set(found) == {"descends"}
    assert re.match(
        r"20 steps on half a squared distance took it from [\d.]+ to [\d.]+, expected less", found["descends"].said
    )


# --- the command -----------------------------------------------------------------------------------------------------

PLUGIN = """\
from taetpu.plugin import Hook, Number, Traced, register


@register("hook", "shift")
class Shift(Hook):
    by: int

    def batch(self, batch, now):
        return batch._replace(tokens=(batch.tokens + self.by) % 11)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["idea.py", "--set", "shift.by=3"], 0, "batch repeats  passed", ""),
        (["idea.py", "--set", "shift.by=0.5"], 2, "", "error: 0.5 is not allowed"),
        (["idea.py"], 2, "", "'by' is missing"),
        (["idea.py", "--set", "shft.by=3"], 2, "", "did you mean 'shift'?"),
        (["nowhere.py"], 2, "", "cannot read this plug-in"),
    ],
)
def test_the_command(tmp_path, arguments, code, out, err):
    (tmp_path / "idea.py").write_text(PLUGIN)
    done = run(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert err in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_command_fails_where_a_check_does(tmp_path):
    (tmp_path / "idea.py").write_text(PLUGIN.replace(" % 11", ""))
    done = run(tmp_path, "idea.py", "--set", "shift.by=3")
    assert done.returncode == 1
    assert "batch repeats: tokens run from 3 to 13, expected numbers of the vocabulary: 0 to 10" in done.stderr
    assert "where:  idea.py:8 in batch" in done.stderr


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taetpu.testing", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False, timeout=300)


def test_an_unknown_kind_is_a_users_error():
    with pytest.raises(UserError, match="unknown ffn kind 'swigloo'"):
        check_component("ffn", "swigloo")
