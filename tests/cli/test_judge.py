"""`taetpu judge`: verdicts on tables, in processes without JAX, with the messages and exit codes of other commands."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.judging.conftest import made_up

OPTIONS = ("--arm", "method", "--seed", "seed", "--metric", "loss", "--better", "min", "--baseline", "base")


@pytest.fixture
def results(here: Path) -> Path:
    """A table with a diverged and a missing run."""
    rows = made_up().to_csv(index=False, float_format="%.4f").splitlines()
    rows[7] = "muon,1,nan"
    del rows[14]
    (here / "results.csv").write_text("\n".join(rows))
    return here / "results.csv"


def test_verdicts_on_a_terminal(taetpu, results, wording):
    done = taetpu("judge", results.name, *OPTIONS, "--equivalence", "0.02")
    assert (done.code, done.err) == (0, "")
    assert [line for line in done.out.splitlines() if len(line) > 80 and "report:" not in line] == []
    wording(done.out)


def test_several_metrics_and_json(taetpu, results):
    several = ("--metric", "seed2", "--better", "max")
    table = made_up()
    table["seed2"] = table["loss"] ** 2
    table.to_csv(results, index=False)
    done = taetpu("judge", results.name, *OPTIONS, *several)
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if len(line) > 80 and "report:" not in line] == []
    whole = taetpu("judge", results.name, *OPTIONS, *several, "--json").json()
    assert [each["primary"] for each in whole] == ["loss", "seed2"]
    alone = taetpu("judge", results.name, *OPTIONS, "--json").json()
    assert [arm["ci95"] for arm in alone["arms"]] == [arm["ci95"] for arm in whole[0]["arms"]]


@pytest.mark.slow
def test_other_commands_read_the_study(taetpu, results, here):
    assert taetpu("judge", results.name, *OPTIONS, "--name", "mine").code == 0
    assert taetpu("report", "mine", "--verify").code == 0
    assert taetpu("report", "mine", "--figures", "svg").code == 0
    rows = taetpu("status", "mine", "--json").json()["mine"]
    assert [row["runs"] for row in rows] == ["5/5", "5/5", "4/5"]
    assert taetpu("status", "mine", "--watch").code == 0  # nothing is awaited
    assert taetpu("list", "--json").json()[0]["study"] == "mine"
    assert taetpu("plot", "mine", "--x", "method", "-o", "p.svg").code == 0
    claims = "study: mine\nclaims: [lion is not worse, muon is inconclusive]\n"
    (here / "claims.yaml").write_text(claims)
    assert taetpu("check", "claims.yaml").code == 0
    (here / "claims.yaml").write_text(claims.replace("not worse", "worse"))
    assert taetpu("check", "claims.yaml").code == 3


def test_figures_of_an_earlier_table_do_not_stay(taetpu, results, here):
    assert taetpu("judge", results.name, *OPTIONS).code == 0
    assert taetpu("report", "results", "--figures", "svg").code == 0
    assert list((here / "runs/results/report/figures").iterdir())
    assert taetpu("judge", results.name, *OPTIONS).code == 0
    assert not (here / "runs/results/report/figures").exists()


def test_claims_name_arms_with_spaces(taetpu, results, here):
    results.write_text(results.read_text().replace("lion", "lion 2 beta"))
    assert taetpu("judge", results.name, *OPTIONS).code == 0
    claims = "lion 2 beta is not worse, lion 2 beta is not worse than base"
    (here / "claims.yaml").write_text(f"study: results\nclaims: [{claims}]\n")
    assert taetpu("check", "claims.yaml").code == 0


def test_mistakes_are_listed_together(taetpu, results, wording):
    text = results.read_text().splitlines()
    text[1], text[2] = 'base,0,"2,5"', "base,x1,abc"
    text.append("base,1,2.5,7")
    results.write_text("\n".join(text))
    done = taetpu("judge", results.name, *OPTIONS)
    assert (done.code, done.out) == (2, "")
    assert "row 16" in done.err
    results.write_text("\n".join([*text[:-1], "base,3,2.5"]))
    done = taetpu("judge", results.name, *OPTIONS)
    assert (done.code, done.out) == (2, "")
    wording(done.err)


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden"])
def test_the_name_is_that_of_a_folder_under_the_root(taetpu, results, here, name: str):
    done = taetpu("judge", results.name, *OPTIONS, "--name", name)
    assert done.code == 2
    assert "--name" in done.err
    assert sorted(path.name for path in here.iterdir()) == ["results.csv", "s.yaml"]


@pytest.mark.parametrize("missing", ["--better", "--metric"])
def test_metric_and_direction_are_required(taetpu, results, missing: str):
    options = list(OPTIONS)
    del options[options.index(missing) : options.index(missing) + 2]
    done = taetpu("judge", results.name, *options)
    assert done.code == 2
    assert missing in done.err


@pytest.mark.slow
def test_jax_is_never_imported(results, here):
    script = (
        "import sys, taetpu\nfrom taetpu.cli.main import main\n"
        f"sys.argv = ['taetpu', 'judge', 'results.csv', *{list(OPTIONS)}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "taetpu.judge('results.csv', arm='method', seed='seed', metric='loss', better='min', baseline='base')\n"
        "heavy = [name for name in ('jax', 'jaxlib', 'equinox', 'torch') if name in sys.modules]\n"
        "sys.stderr.write(' '.join(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert json.loads((here / "runs/results/results.json").read_text())["study"] == "results"


@pytest.mark.alone
def test_a_hundred_runs_take_less_than_two_and_a_half_seconds(process, here):
    """On a machine that imports the libraries in 1.1 s, which is most of the time; more on slower machines."""
    made_up({"base": 0.0} | {f"arm{i}": i / 100 for i in range(19)}).to_csv(here / "results.csv", index=False)

    def seconds() -> float:
        began = time.monotonic()
        assert process("judge", "results.csv", *OPTIONS).code == 0
        return time.monotonic() - began

    def seconds_of_libraries() -> float:
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import typer, pydantic, scipy.stats, altair"], check=True)
        return time.monotonic() - began

    # In turns, because the speed of a shared machine changes.
    pairs = [(seconds(), seconds_of_libraries()) for _ in range(5)]
    judged, libraries = map(min, zip(*pairs, strict=True))
    assert judged < 2.5 * max(1, libraries / 1.1), (judged, libraries)
