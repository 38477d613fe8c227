"""`plan` and `run` refuse a study whose arms break their contract; `plan --diff` shows what an arm changes."""

import re
from pathlib import Path

import pytest

PLANTED = Path(__file__).parents[1] / "contract" / "planted.py"
BROKEN = {
    "an arm that changes nothing": (
        "x: {model.ffn: copied}",
        "error: arm 'x' changes nothing: model.ffn: swiglu -> copied ",
        "at arms.x.model.ffn\n  remedy: Remove it",
    ),
    "a plug-in that also changes how what it leaves alone is drawn": (
        "x: {model.mixer.kind: louder}",
        "error: arm 'x' changes more than .*: layers.0.mixer.wq starts",
        "at arms.x.model.mixer.kind\n  remedy: Draw the parameter",
    ),
    "two arms that are one": (
        "x: {train.optimizer.lr: 0.00010000000000001}",
        "error: arms 'low-lr' and 'x' .*the same program",
        "at arms.x.train.optimizer.lr\n  remedy: Remove one of",
    ),
}


@pytest.fixture
def write(here, text):
    """`write(arm, ...)`: write the tiny study with additional arms, which may use the kinds of `planted.py`."""

    def written(*arms: str) -> None:
        (here / "planted.py").write_bytes(PLANTED.read_bytes())
        (here / "s.yaml").write_text("plugins: [planted.py]\n" + text + "".join(f"  {arm}\n" for arm in arms))

    return written


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "command"), [*zip(BROKEN, ("plan", "run", "plan"), strict=True)])
def test_a_broken_contract_is_refused_before_anything_is_written(taetpu, here, contents, write, broken, command):
    arm, problem, rest = BROKEN[broken]
    write(arm)
    before = contents(here)
    code, out, err = taetpu(command, "s.yaml")
    assert (code, out) == (2, "")
    assert re.match(problem, err)
    assert f"where:  s.yaml:{len((here / 's.yaml').read_text().splitlines())} {rest}" in err
    assert contents(here) == before


ARMS = ("relu: {model.ffn: relu}", "batch: {train.batch_size: 8}", "mute: {model.mixer.drop_heads: [1]}")


@pytest.mark.slow
def test_plan_states_shared_programs_and_kept_parameters(taetpu, write):
    write(*ARMS)
    arms = {arm["name"]: arm["contract"] for arm in taetpu("plan", "s.yaml", "--json").json()["arms"]}
    programs = {name: arm.pop("program") for name, arm in arms.items()}
    assert programs["baseline"] == programs["low-lr"] == programs["mute"]
    assert len(set(programs.values())) == 3
    assert arms["low-lr"] == arms["baseline"] == {"same_data": True, "same_parameters": 11, "other_parameters": 0}
    assert arms["relu"] == {"same_data": True, "same_parameters": 8, "other_parameters": 2}
    assert not arms["batch"]["same_data"]
    assert re.search(r"\bbatch: .*different data", taetpu("plan", "s.yaml").out)


@pytest.mark.slow
def test_program_name_is_the_same_in_every_process(taetpu, process):
    def programs(done):
        return [arm["contract"]["program"] for arm in done.json()["arms"]]

    assert programs(taetpu("plan", "s.yaml", "--json")) == programs(process("plan", "s.yaml", "--json"))


@pytest.mark.slow
def test_diff_shows_changes_of_parameters_and_operations(taetpu, here, contents, write):
    write(*ARMS)
    before = contents(here)
    found = taetpu("plan", "s.yaml", "--diff", "relu", "--json").json()
    assert list(found["config"]) == ["model.ffn", "model.ffn.mult"]  # relu resets mult
    assert found["removed"] == {"layers.0.ffn.gate": [16, 40]}
    assert found["reshaped"] == {"layers.0.ffn.down": [[40, 16], [64, 16]], "layers.0.ffn.up": [[16, 40], [16, 64]]}
    assert (found["added"], found["redrawn"], found["breaks"]) == ({}, {}, None)
    assert found["parameters"][1] - found["parameters"][0] == 2 * 16 * 64 - 3 * 16 * 40
    assert found["flops_per_token"][1] - found["flops_per_token"][0] == 6 * (2 * 16 * 64 - 3 * 16 * 40)
    # One product less forward, two less backward, and one less in the evaluation.
    assert found["operations"]["dot_general"][0] - found["operations"]["dot_general"][1] == 4
    table = taetpu("plan", "s.yaml", "--diff", "relu").out
    assert max(map(len, table.splitlines())) <= 80
    for said in (
        "model.ffn",
        "layers.0.ffn.gate",
        "40 x 16 -> 64 x 16",
        "dot_general",
        "8 of 8 common",
        "the same order",
    ):
        assert said in table
    assert contents(here) == before


@pytest.mark.slow
def test_diff_explains_a_broken_contract(taetpu, write):
    write("x: {model.mixer.kind: louder}")
    found = taetpu("plan", "s.yaml", "--diff", "x", "--json").json()
    assert list(found["redrawn"]) == ["layers.0.mixer.wq"]
    assert "layers.0.mixer.wq starts" in found["breaks"]
    table = taetpu("plan", "s.yaml", "--diff", "x").out
    assert "10 of 11 common parameters" in table
    assert found["breaks"] in table


def test_arm_that_differs_in_numbers_only_has_the_same_program(taetpu):
    assert "only its input" in taetpu("plan", "s.yaml", "--diff", "low-lr").out


def test_diff_of_an_unknown_arm_suggests_the_nearest(taetpu):
    code, out, err = taetpu("plan", "s.yaml", "--diff", "lowlr")
    assert (code, out) == (2, "")
    remedy = "Did you mean 'low-lr'? Use one of: baseline, low-lr."
    assert err == f"error: study 'small' has no arm 'lowlr'\n  remedy: {remedy}\n"


def test_metric_of_an_unknown_site_is_refused(taetpu, here, text):
    file, metrics = here / "s.yaml", "metrics: {stream: {kind: activation, site: residul}}"
    file.write_text(text.replace("metrics: {gradient-norm: {every: 6}}", metrics))
    assert metrics in file.read_text()
    code, _, err = taetpu("plan", "s.yaml")
    assert code == 2
    assert "a site 'residul'" in err
    assert "at base.train.metrics.stream" in err
    assert "Did you mean 'residual'" in err


@pytest.mark.slow
def test_model_too_large_for_memory_is_refused_by_run(taetpu, here):
    """`plan` reports it, and `run` refuses it before anything is stored."""
    from taetpu.train.memory import device_bytes_limit

    large = ("s.yaml", "--set", "model.dim=131072")
    (short,) = taetpu("plan", *large, "--json").json()["memory"]
    assert short["arms"] == ["baseline", "low-lr"]
    assert short["available"] == device_bytes_limit() < 3 * 10**12 < short["needed"]
    shown = " ".join(taetpu("plan", *large).out.split())
    assert "into memory: baseline, low-lr" in shown
    assert f"{short['needed'] / 2**30:,.1f} GiB" in shown
    assert "time:" not in shown
    done = taetpu("run", *large)
    assert (done.code, list(here.iterdir())) == (2, [here / "s.yaml"])
    for part in (
        f"{short['needed']:,}",
        f"{short['available']:,}",
        "--set model.dim=131072",
        "remedy: Use a model of at most",
    ):
        assert part in done.err
    assert taetpu("plan", "s.yaml", "--json").json()["memory"] == []
