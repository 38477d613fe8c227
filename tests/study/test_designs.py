"""The arms of designs, the parameters that they share, and a study with every design."""

import re
from itertools import combinations, product
from pathlib import Path

import pytest
from tests.small import STUDY, TINY

from taetpu.contract.check import check_arms, compare_parameters
from taetpu.core.errors import UserError
from taetpu.spec.differences import difference
from taetpu.spec.loading import load_study

BASE = STUDY[: STUDY.index("seeds:")]


@pytest.fixture
def load(tmp_path):
    """Return `load(added)`, which loads the small baseline with additional lines."""

    def loaded(added):
        file = tmp_path / "s.yaml"
        file.write_text(BASE + added)
        return load_study(file)

    return loaded


def changes(study):
    """Return the changed values of every arm except the baseline, by path."""
    return {arm.name: {path: new for path, (_, new) in arm.diff.items()} for arm in study.arms[1:]}


# --- one at a time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "word"), [("leave_one_out", "without"), ("add_one_in", "with")])
def test_parts_change_alone_and_together(load, kind, word):
    study = load(f"{kind}:\n  bias: {{model.bias: true}}\n  big: {{model.dim: 32, model.num_layers: 2}}\n")
    bias, big = {"model.bias": True}, {"model.dim": 32, "model.num_layers": 2}
    together = {path: new[1] for path, new in difference(study.arms[0].config, study.arms[3].config).items()}
    assert [arm.overrides for arm in study.arms[1:]] == [bias, big, {**bias, **big}]
    assert list(changes(study)) == [f"{word}-bias", f"{word}-big", f"{word}-all"]
    assert together.keys() >= bias.keys() | big.keys()


def test_single_part_has_no_arm_for_all_parts(load):
    assert list(changes(load("leave_one_out: {bias: {model.bias: true}}\n"))) == ["without-bias"]


THREE_PARTS = "bias: {model.bias: true}, norm: {model.norm: layer}, gate: {model.ffn: relu}"


@pytest.mark.parametrize(("kind", "word"), [("leave_one_out", "without"), ("add_one_in", "with")])
def test_both_ways_compares_all_parts_but_one_with_all_parts(load, kind, word):
    study = load(f"{kind}: {{both_ways: true, {THREE_PARTS}}}\n")
    arms = {arm.name: arm for arm in study.arms}
    assert list(arms)[4:] == [f"{word}-all", *(f"{word}-all-but-{part}" for part in ("bias", "norm", "gate"))]
    last = arms[f"{word}-all-but-norm"]
    assert last.overrides == {"model.bias": True, "model.ffn": "relu"}
    assert study.against(last).name == f"{word}-all"
    assert study.against(arms[f"{word}-all"]).name == "baseline"
    assert [arm.config for arm in load(f"{kind}: {{both_ways: false, {THREE_PARTS}}}\n").arms] == [
        arm.config for arm in study.arms[:5]
    ]


def test_a_part_may_be_called_both_ways(load):
    assert list(changes(load("add_one_in: {both_ways: {model.bias: true}}\n"))) == ["with-both_ways"]


@pytest.mark.parametrize(
    ("added", "place"),
    [
        ("add_one_in: {both_ways: true, bias: {model.bias: true}, norm: {model.norm: layer}}\n", "both_ways"),
        (f"add_one_in: {{both_ways: 2, {THREE_PARTS}}}\n", "both_ways"),
        (f"add_one_in: {{both_ways: true, {THREE_PARTS}}}\nladder: {{model.dim: [8, 16]}}\n", "ladder"),
        (f"add_one_in: {{both_ways: true, {THREE_PARTS}}}\nacross: {{train.steps: [6, 8]}}\n", "across"),
        (f"add_one_in: {{both_ways: true, {THREE_PARTS}}}\ntune: {{train.optimizer.lr: [1e-3, 1e-2]}}\n", "tune"),
    ],
)
def test_both_ways_without_room_for_a_second_baseline_is_refused(load, added, place):
    with pytest.raises(UserError, match="both_ways") as caught:
        load(added)
    assert caught.value.path[-1] == place


# --- factorial -------------------------------------------------------------------------------------------------------

THREE = "model.norm: [rms, layer], model.bias: [false, true], wide: {model.dim: 32, model.num_layers: 2}"


def test_full_factorial_has_every_combination_once(load):
    study = load(f"factorial: {{{THREE}}}\n")
    levels = [tuple(arm.role["levels"].values()) for arm in study.arms[1:]]
    assert [(0, 0, 0), *levels] == sorted(product((0, 1), repeat=3))
    assert "norm=layer,bias=true,wide" in changes(study)
    for arm in study.arms[1:]:
        norm, bias, wide = arm.role["levels"].values()
        expected = {"model.norm": "layer"} if norm else {}
        expected |= {"model.bias": True} if bias else {}
        assert arm.overrides == expected | ({"model.dim": 32, "model.num_layers": 2} if wide else {})


def test_factor_may_have_three_levels_in_any_order(load):
    study = load("factorial: {model.norm: [layer, rms, none], model.bias: [false, true]}\n")
    assert len(study.arms) == 6
    assert study.design["factorial"]["factors"] == {"norm": ["", "norm=layer", "norm=none"], "bias": ["", "bias=true"]}


def test_half_of_four_factors_contains_all_combinations_of_any_three(load):
    study = load(f"factorial: {{fraction: 1/2, {THREE}, train.optimizer.lr: [1e-3, 1e-2]}}\n")
    cells = [dict.fromkeys(study.design["factorial"]["factors"], 0), *(arm.role["levels"] for arm in study.arms[1:])]
    assert len(cells) == 8
    assert study.design["factorial"]["resolution"] == 4
    assert study.design["factorial"]["words"] == [["bias", "lr", "norm", "wide"]]
    for three in combinations(cells[0], 3):
        assert sorted(tuple(cell[f] for f in three) for cell in cells) == sorted(product((0, 1), repeat=3))
    assert {sum(cell.values()) % 2 for cell in cells} == {0}


# --- ladder ----------------------------------------------------------------------------------------------------------

LADDER = """\
arms:
  relu: {model.ffn: relu}
  low-lr: {train.optimizer.lr: 1e-4}
ladder: {model.dim: [8, 16, 32], model.mixer.num_heads: [1, 2, 2]}
"""


def test_every_arm_has_the_same_changes_at_each_rung(load):
    study = load(LADDER)
    assert [arm.name for arm in study.arms] == [
        "baseline",
        *(f"{arm}@dim=8,num_heads=1" for arm in ("baseline", "relu", "low-lr")),
        *("relu", "low-lr"),
        *(f"{arm}@dim=32,num_heads=2" for arm in ("baseline", "relu", "low-lr")),
    ]
    arms = {arm.name: arm for arm in study.arms}
    for rung in ("@dim=8,num_heads=1", "@dim=32,num_heads=2"):
        for name in ("relu", "low-lr"):
            arm = arms[f"{name}{rung}"]
            assert study.against(arm) is arms[f"baseline{rung}"]
            assert difference(study.against(arm).config, arm.config) == arms[name].diff
    assert study.design["ladder"] == {
        "rungs": ["dim=8,num_heads=1", "dim=16,num_heads=2", "dim=32,num_heads=2"],
        "own": "dim=16,num_heads=2",
    }


@pytest.mark.slow
def test_arms_of_a_rung_share_data_and_unchanged_parameters(load):
    study = load(LADDER.replace("[8, 16, 32]", "[8, 16]").replace("[1, 2, 2]", "[1, 2]"))
    computed = check_arms(study)
    for arm in study.arms:
        old, new = computed[study.against(arm).name], computed[arm.name]
        found = compare_parameters(old, new)
        assert new.same_data(old)
        assert not found.redrawn
        assert all(".ffn" in name for name in (*found.reshaped, *found.added, *found.removed))


def test_grid_on_a_ladder_omits_the_cell_of_the_baseline_at_every_rung(load):
    study = load("grid: {model.bias: [false, true]}\nladder: {model.dim: [16, 32]}\n")
    assert [arm.name for arm in study.arms] == ["baseline", "bias=true", "baseline@dim=32", "bias=true@dim=32"]


def test_ladder_of_data_compares_only_within_rungs(load):
    study = load("arms: {relu: {model.ffn: relu}}\nladder: {task.seq_len: [16, 24]}\n")
    assert len(study.runs()) == 3 * len(study.arms)
    with pytest.raises(UserError, match="on other data") as error:
        load("arms: {long: {task.seq_len: 24}}\n").runs()
    assert "'long'" in str(error.value)


def test_contrast_over_rungs_with_other_data_is_refused(load):
    arms = "arms: {relu: {model.ffn: relu}}\nladder: {task.seq_len: [16, 24]}\n"
    contrast = "measure: {primary: val/loss, contrasts: {far: {compare: relu, to: relu@seq_len=24}}}\n"
    with pytest.raises(UserError) as error:
        load(arms + contrast).runs()
    assert error.value.path == ("measure", "contrasts", "far")
    assert "'relu' and 'relu@seq_len=24' are evaluated on" in error.value.problem
    assert load(
        arms.replace("task.seq_len", "train.steps").replace("16, 24", "20, 24") + contrast.replace("seq_len", "steps")
    ).runs()


@pytest.mark.slow
def test_ladder_of_data_is_trained_and_reported(study):
    """Rungs differ in their number of evaluated positions."""
    task = "task: {kind: induction, seq_len: 8, symbols: 8, eval_size: 8}"
    text = re.sub("task: .*", task, TINY) + "seeds: 2\narms: {low-lr: {train.optimizer.lr: 1e-4}}\n"
    results = study(f"{text}ladder: {{task.kind: [induction, copy]}}\n")[0].results
    assert [arm["verdict"] is None for arm in results["arms"]] == [True, False, True, False]
    assert results["designs"]["ladder"]["arms"]["low-lr"]["trend"] is None


@pytest.mark.slow
def test_hundreds_of_arms_have_different_names_and_ids(load):
    values = ", ".join(f"{n}e-5" for n in range(1, 201) if n != 100)
    study = load(f"seeds: 1\narms: {{lr: {{train.optimizer.lr: [{values}]}}}}\n")
    runs = study.runs()
    assert len(study.arms) == len({arm.name for arm in study.arms}) == len({run.id for run in runs}) == 200


# --- from the file to the results ------------------------------------------------------------------------------------

# The learning rate and the other numbers do not change the program, so each rung compiles one program.
ALL = """\
seeds: 2
leave_one_out: {decay: {train.optimizer.weight_decay: 0.5}, momentum: {train.optimizer.b2: 0.9}}
factorial: {train.optimizer.lr: [1e-3, 3e-2], train.optimizer.b1: [0.9, 0.5]}
ladder: {model.dim: [8, 12]}
"""


@pytest.fixture
def short():
    return TINY + ALL


@pytest.mark.nightly
def test_study_with_every_design_is_analysed_and_may_change_later(study, short):
    outcome, folder = study(short)
    results, stored = outcome.results, folder.read_study()
    assert results["complete"]
    assert outcome.failed == []
    designs = results["designs"]
    assert designs.keys() >= {"leave_one_out", "factorial", "ladder", "limits"}
    assert [term["factors"] for term in designs["factorial"]["scales"]["dim=8"]["terms"]] == [
        ["lr"],
        ["b1"],
        ["lr", "b1"],
    ]
    assert designs["ladder"]["scales"].keys() == {"dim=8", "dim=12"}
    arms = {arm["name"]: arm for arm in results["arms"]}
    assert all(arm["planned"] for arm in arms.values())
    assert list(arms) == list(stored["arms"]) == stored["plan"]["arms"]
    for arm in arms.values():  # an effect is against the baseline of its own rung
        if arm["against"] is not None:
            assert arm["effect"] == pytest.approx(arm["mean"] - arms[arm["against"]]["mean"])
            assert ("@dim=12" in arm["name"]) == (arm["against"] == "baseline@dim=12")
    assert Path(outcome.report["html"]).exists()

    # An arm that is added later is not planned.
    plan = results["plan"]
    more = short + "arms: {late: {train.optimizer.eps: 1e-3}}\n"
    results = study(more)[0].results
    assert {arm["name"] for arm in results["arms"] if not arm["planned"]} == {"late@dim=12", "late"}
    assert results["plan"]["sha256"] == plan["sha256"]

    # A rung that is removed later stays in the results with its baseline.
    outcome, folder = study(short.replace("ladder: {model.dim: [8, 12]}\n", ""))
    names = [arm["name"] for arm in outcome.results["arms"]]
    assert {"baseline@dim=12", "without-all@dim=12", "late"} <= set(names)
    assert set(folder.read_study()["roles"]) <= set(names)


FACTORS = "train.optimizer.lr: [1e-3, 3e-2], train.optimizer.b1: [0.9, 0.5], hot: {train.optimizer.weight_decay: 0.2}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factors", "mixed"),
    [(FACTORS, 0), (f"fraction: 1/2, {FACTORS}, train.optimizer.b2: [0.99, 0.9]", 3)],
)
def test_factorial_of_eight_cells_is_analysed_with_its_aliases(study, factors, mixed):
    results = study(f"{TINY}seeds: 2\nfactorial: {{{factors}}}\n")[0].results
    terms = results["designs"]["factorial"]["scales"][""]["terms"]
    assert len(results["arms"]) == 8
    assert len(terms) == (7 if mixed else 6)
    assert sum(bool(term["aliases"]) for term in terms) == mixed
    assert all(term["p"] is not None for term in terms)
