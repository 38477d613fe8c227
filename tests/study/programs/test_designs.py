"""Designs of programs: tuning, goals, interim analyses, times to a value, claims, and a repeated run."""

import pytest
import yaml
from tests.program_studies import TRAIN, write_study, written

from taetpu.core.errors import UserError
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.claims_file import check_claims
from taetpu.study.programs.running import ProgramOptions, run_program_file


def run(folder, source=TRAIN, options=None, **changes):
    file = write_study(folder, source, **changes)
    outcome = run_program_file(file, root=str(folder / "runs"), options=options or ProgramOptions())
    assert verify(StudyFolder(open_store(folder / "runs"), "tiny")) == []
    return outcome


@pytest.mark.slow
def test_arms_are_compared_at_their_best_values(tmp_path):
    outcome = run(tmp_path, arms={"bias": {"bias": True}}, tune={"lr": [0.3, 0.01, 0.2]})
    tuning = outcome.results["tuning"]
    assert {name: arm["best"] for name, arm in tuning["arms"].items()} == {"baseline": "lr=0.01", "bias": "lr=0.01"}
    values = written(outcome.results)
    assert values["bias@tuned"] == pytest.approx([value - 0.09 for value in values["bias"]])
    assert outcome.results["final"]


def test_a_search_runs_the_candidates_that_its_goal_needs(tmp_path):
    goal = {"at_most": 0.55, "minimise": "lr", "monotone": False}
    options = ProgramOptions(search=True)
    outcome = run(tmp_path, options=options, seeds=3, arms={"rate": {"lr": [0.05, 0.2, 0.3, 0.4]}}, goal=goal)
    answer = outcome.results["goal"]
    assert StudyFolder(open_store(tmp_path / "runs"), "tiny").read_study()["goal_costs"] == {
        "baseline": 0.1, "rate=0.05": 0.05, "rate=0.2": 0.2, "rate=0.3": 0.3, "rate=0.4": 0.4,
    }  # fmt: skip
    assert answer["minimise"] == "lr"
    trained = {arm["name"] for arm in outcome.results["arms"] if any(run["id"] for run in arm["runs"])}
    assert trained == {"rate=0.05"}


def test_costs_that_a_program_prints_order_the_candidates(tmp_path):
    source = f"{TRAIN}print('parameters:', int(1000 * float(settings['lr'])))\n"
    changes = {"program": {"costs": {"params": r"parameters: (\d+)"}}, "goal": {"at_most": 9.0, "minimise": "params"}}
    outcome = run(tmp_path, source, **changes)
    stored = StudyFolder(open_store(tmp_path / "runs"), "tiny").read_study()
    assert stored["goal_costs"] == {"baseline": 100.0, "high": 500.0}
    assert outcome.results["goal"]["minimise"] == "params"


def test_a_cost_that_no_program_prints_is_refused(tmp_path):
    changes = {"program": {"costs": {"params": r"parameters: (\d+)"}}, "goal": {"at_most": 9.0, "minimise": "params"}}
    with pytest.raises(UserError) as caught:
        run(tmp_path, **changes)
    assert caught.value.path == ("program", "costs", "params")


def test_times_to_a_value_are_in_the_programs_steps(tmp_path):
    measure = {"primary": "loss", "better": "min", "reach": 0.8}
    outcome = run(tmp_path, base={"lr": 0.01, "steps": 5}, arms={"high": {"lr": 0.4}}, measure=measure)
    assert written(outcome.results) == {"baseline": [2, 2], "high": [3, 3]}


def test_seeds_are_added_until_arms_are_resolved(tmp_path):
    measure = {"primary": "loss", "better": "min", "looks": [2, 4]}
    outcome = run(tmp_path, options=ProgramOptions(until_resolved=True), arms={"bias": {"bias": True}}, measure=measure)
    assert outcome.results["seeds"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "rung"), [({"ladder": {"lr": [0.1, 0.3]}}, "lr=0.3"), ({"across": {"lr": [0.1, 0.3]}}, "lr=0.3")]
)
def test_arms_are_compared_with_the_baseline_of_their_rung(tmp_path, changes, rung):
    outcome = run(tmp_path, arms={"bias": {"bias": True}}, **changes)
    arms = {arm["name"]: arm for arm in outcome.results["arms"]}
    assert {name: arm["against"] for name, arm in arms.items()} == {
        "baseline": None, "bias": "baseline", f"baseline@{rung}": None, f"bias@{rung}": f"baseline@{rung}",
    }  # fmt: skip
    values = written(outcome.results)
    assert values[f"baseline@{rung}"] == pytest.approx([value + 0.2 for value in values["baseline"]])


def test_claims_are_checked_against_the_runs(tmp_path):
    run(tmp_path, TRAIN.replace('Random(settings["seed"])', 'Random(settings["seed"] + settings["lr"])'), seeds=3)
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        yaml.safe_dump({"study": "runs/tiny", "claims": ["high is worse by at least 0.3", "baseline is below 0.1"]})
    )
    _, checked = check_claims(claims)
    assert [claim.holds for claim in checked] == [True, False]


@pytest.mark.parametrize(
    ("extra", "differs"), [("", False), ("import os\noffsets = [os.getpid() * 1e-9] * 100\n", True)]
)
def test_a_repeated_run_shows_the_noise_that_equal_seeds_leave(tmp_path, extra, differs):
    source = TRAIN.replace("for step in range(first", f"{extra}for step in range(first").replace(":.6f", ":.12f")
    outcome = run(tmp_path, source, seeds=2, program={"repeat": 1})
    repeat = outcome.results["repeat"]
    assert (repeat["values"][0] != repeat["values"][1]) == differs
    assert (repeat["arm"], repeat["seed"]) == ("baseline", 0)
    assert len(outcome.results["arms"][0]["runs"]) == 2
