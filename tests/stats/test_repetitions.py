"""Repetitions of a study without effects: groups of its seeds, each analysed as a study."""

import numpy as np
import pytest
from tests.stats.conftest import made_study

from taetpu.core.errors import UserError
from taetpu.stats.analyse import compute_results
from taetpu.stats.claims import parse_claim
from taetpu.stats.repetitions import check_repetitions

ARMS, NUMBER, SIZE = 5, 10, 4


def make(tmp_path, effects, name="toy", seeds=NUMBER * SIZE):
    """A study of arms with an effect in each repetition, `(repetitions, arms)`, and noise."""
    rng = np.random.default_rng(1)
    y = rng.normal(size=(ARMS, seeds)) + rng.normal(size=(1, seeds))
    for number, row in enumerate(effects):
        y[:, number * SIZE : (number + 1) * SIZE] += np.array(row)[:, None]
    names = ["baseline", *(f"same{i}" for i in range(1, ARMS))]
    values = {arm: dict(enumerate(map(float, row))) for arm, row in zip(names, y, strict=True)}
    return made_study(tmp_path, values, name=name, noise="moderated")


def check(folder, text):
    return check_repetitions(parse_claim(text, ("claims", 0)), folder, ("claims", 0))


def test_repetitions_with_an_effect_are_named(tmp_path):
    effects = np.zeros((NUMBER, ARMS))
    effects[2, 1], effects[7, 3] = 20, -20
    folder = make(tmp_path, effects)
    few = check(folder, f"at most 1 of {NUMBER} repetitions have a false verdict")
    enough = check(folder, f"at most 2 of {NUMBER} repetitions have a false verdict")
    assert (few.holds, enough.holds) == (False, True)
    assert "repetition 2: same1 is worse; repetition 7: same3 is better" in enough.evidence


def test_repetition_is_judged_as_a_study_of_its_seeds(tmp_path):
    """The verdicts of one repetition are those of a study that has its seeds alone."""
    effects = np.zeros((NUMBER, ARMS))
    effects[0] = [0, 3, -3, 4, 0]
    whole, part = make(tmp_path, effects), make(tmp_path, effects[:1], "part", NUMBER * SIZE)
    values = {arm["name"]: {run["seed"]: run["value"] for run in arm["runs"][:SIZE]}
              for arm in compute_results(part)["arms"]}  # fmt: skip
    alone = compute_results(made_study(tmp_path, values, name="alone", noise="moderated"))
    judged = [f"{arm['name']} is {arm['verdict']}" for arm in alone["arms"] if arm["verdict"] in ("better", "worse")]
    assert judged
    checked = check(whole, f"at most 0 of {NUMBER} repetitions have a false verdict")
    assert ", ".join(judged) in checked.evidence


@pytest.mark.parametrize("number", [0, 3, 40])
def test_seeds_that_cannot_be_divided_are_refused(tmp_path, number):
    with pytest.raises(UserError) as caught:
        check(make(tmp_path, np.zeros((NUMBER, ARMS))), f"at most 3 of {number} repetitions have a false verdict")
    assert str(NUMBER * SIZE) in caught.value.problem
    assert caught.value.path == ("claims", 0)
