"""`taetpu report`, `report --verify` and `check`: results agree with the stored metrics, or the difference is named."""

import json
import re
import shutil

import pytest
from tests.forged import unsealed


def test_report_is_rebuilt_from_the_store(taetpu, here, trained):
    root = here / "root"
    shutil.copytree(trained[0], root)
    shutil.rmtree(root / "small/report")
    (root / "small/results.json").unlink()
    done = taetpu("report", root / "small")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"report: {root}/small/report/index.html"
    for name in ("results.json", "report/index.html", "report/report.md"):
        assert (root / "small" / name).read_bytes() == (trained[0] / "small" / name).read_bytes()


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_verdicts_have_colours_where_the_output_has(monkeypatch, capsys, environment, coloured):
    from taetpu.cli.report_commands import print_verdicts

    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    print_verdicts("one is worse\n\narm  verdict\na    worse\nb    better")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "\x1b" in line] == ([lines[3], lines[4]] if coloured else [])


def test_report_of_a_root_with_many_studies_is_refused(taetpu, here, trained):
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", here / "root" / name)
    done = taetpu("report", here / "root")
    assert done.code == 2
    assert "2 studies" in done.err
    assert "studies: other, small" in done.err


@pytest.fixture
def study(here, trained, monkeypatch):
    """The folder of a trained study without digests, so that tests can change files."""
    shutil.copytree(trained[0], here / "root")
    return unsealed(here / "root/small", monkeypatch)


def edited(file, change):
    """Change the data of a JSON file by `change(data)`."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_unchanged_study_verifies(taetpu, study, contents):
    before = contents(study)
    done = taetpu("report", study, "--verify")
    assert (done.code, done.err) == (0, "")
    assert "raw metrics of 4 runs" in done.out
    assert taetpu("report", study, "--verify", "--json").json() == {"study": "small", "problems": []}
    assert contents(study) == before


def result_of(study, arm):
    return next(study.glob(f"runs/{arm}/0-*/result.json"))


TAMPERED = {
    "an effect": (
        lambda study: edited(study / "results.json", lambda data: data["arms"][1].update(effect=-1.0)),
        "results.json: arms[low-lr].effect is -1.0, but ",
    ),
    "a verdict": (
        lambda study: edited(study / "results.json", lambda data: data["arms"][1].update(verdict="equivalent")),
        "results.json: arms[low-lr].verdict is 'equivalent', but ",
    ),
    "an arm left out": (
        lambda study: edited(study / "results.json", lambda data: data["arms"].pop()),
        "results.json: arms is ",
    ),
    "a result": (
        lambda study: edited(result_of(study, "low-lr"), lambda data: data["metrics"].update({"val/loss": 0.5})),
        "val/loss is 0.5 in the result, but ",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_verify_finds_tampering(taetpu, study, what):
    tamper, problem = TAMPERED[what]
    tamper(study)
    done = taetpu("report", study, "--verify")
    assert done.code == 3
    assert problem in done.out
    assert "between results.json and" in done.err
    told = taetpu("report", study, "--verify", "--json")
    assert told.code == 3
    assert any(problem in line for line in json.loads(told.out)["problems"])


def test_differences_are_listed_with_the_cause_first_in_80_columns(taetpu, study):
    file = study / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\narms", "seeds:\n- 0\n- 5\narms"))
    done = taetpu("report", study, "--verify")
    assert done.code == 3
    lines = done.out.splitlines()
    assert "seeds are [0, 5], and the" in " ".join(line.strip() for line in lines[:3])
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)
    problems = json.loads(taetpu("report", study, "--verify", "--json").out)["problems"]
    assert sum(not line.startswith(" ") for line in lines) == len(problems) > 10
    for command in ("report", "status"):
        told = " ".join(taetpu(command, study).out.split())
        assert "not as planned: seeds are [0, 5], " in told


def test_evidence_is_wrapped(taetpu, here, study):
    done = taetpu("check", claims(here, "low-lr is not better"))
    assert len(done.out.splitlines()) > 2
    assert max(map(len, done.out.splitlines())) <= 80


BROKEN = {
    "a study without seeds": ("study.yaml", "seeds:\n- 0\n- 1\narms", "arms", "the study has no seeds"),
    "a study without a plan": ("study.yaml", "plan:\n  alpha", "planned:\n  alpha", "the study has no plan"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("command", ["verify", "status", "run"])
def test_study_without_a_part_is_refused(taetpu, study, what, command):
    name, old, new, problem = BROKEN[what]
    text = (study / name).read_text()
    assert old in text
    (study / name).write_text(text.replace(old, new))
    refused(taetpu, study, command, problem, study / name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "not the result|result must be"),
        ("{}", "not the result|outcome must be"),
        (
            '{"outcome": "finished", "steps": 20, "metrics": {"val/loss": "low"}}',
            "metric 'val/loss' must .*number, got 'low'",
        ),
    ],
)
@pytest.mark.parametrize("command", ["verify", "status", "run"])
def test_malformed_result_is_refused(taetpu, study, text, problem, command):
    result_of(study, "low-lr").write_text(text)
    refused(taetpu, study, command, problem, result_of(study, "low-lr"))


def refused(taetpu, study, command, problem, file):
    given = {"verify": ("report", study, "--verify"), "status": ("status", study)}
    done = taetpu(*given.get(command, ("run", "s.yaml", "--root", study.parent)))
    assert done.code == 2
    assert re.search(problem, done.err)
    assert str(file) in done.err
    assert "remedy: " in done.err


def test_changed_plan_is_refused(taetpu, study):
    file = study / "study.yaml"
    file.write_text(file.read_text().replace("alpha: 0.05", "alpha: 0.5"))
    done = taetpu("report", study, "--verify")
    assert done.code == 2
    assert "analysis plan differs" in done.err


def test_truncated_schedule_is_refused(taetpu, study):
    edited(result_of(study, "low-lr"), lambda data: data.update(steps=10))
    done = taetpu("report", study, "--verify")
    assert done.code == 2
    assert "after 10 of its 20 steps" in done.err


def test_damaged_metrics_are_refused(taetpu, study):
    segment = next(study.glob("runs/low-lr/0-*/metrics/*.json"))
    segment.write_bytes(segment.read_bytes().replace(b"1", b"2"))
    done = taetpu("report", study, "--verify")
    assert done.code == 2
    assert "segment is damaged" in done.err


def claims(here, *said):
    (here / "claims.yaml").write_text("study: root/small\nclaims:\n" + "".join(f"- {text}\n" for text in said))
    return "claims.yaml"


def test_claims_that_hold_exit_with_0_and_others_with_3(taetpu, here, study):
    verdict = json.loads((study / "results.json").read_text())["arms"][1]["verdict"]
    other = {"inconclusive": "better"}.get(verdict, "inconclusive")
    done = taetpu("check", claims(here, f"low-lr is {verdict}", f"low-lr is not {other}"))
    assert (done.code, done.err) == (0, "")
    assert [line for line in done.out.splitlines() if not line.startswith(" ")] == [
        f"holds  low-lr is {verdict}", f"holds  low-lr is not {other}"
    ]  # fmt: skip
    done = taetpu("check", claims(here, f"low-lr is {verdict}", f"low-lr is {other}"))
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert done.err.startswith("1 of 2 claims")
    assert f"FAILS  low-lr is {other}\n       {verdict}. " in done.out
    told = taetpu("check", "claims.yaml", "--json")
    assert told.code == 3
    assert [entry["holds"] for entry in json.loads(told.out)] == [True, False]


SIZELESS = "low-lr is worse by at least much"


@pytest.mark.parametrize(
    ("said", "problem", "remedy"),
    [
        ("low-lr is bad", "'low-lr is bad' ", "`nope is worse"),
        ("lowlr is worse", "study 'small' has no arm 'lowlr'", "low-lr"),
        (SIZELESS, "the size", "e.g. 0.02"),
    ],
)
def test_malformed_claim_is_refused_at_its_line(taetpu, here, study, said, problem, remedy):
    done = taetpu("check", claims(here, "low-lr is not better", said))
    assert done.code == 2
    assert f"error: {problem}" in done.err
    assert "claims.yaml:4 at claims.1" in done.err
    assert remedy in done.err.partition("remedy:")[2]


def test_claims_file_without_claims_is_refused(taetpu, here, study, wording):
    (here / "claims.yaml").write_text("study: root/small\nclaims: []\n")
    done = taetpu("check", "claims.yaml")
    assert done.code == 2
    wording(done.err)


def test_claims_are_judged_by_raw_metrics(taetpu, here, study):
    edited(study / "results.json", lambda data: data["arms"][1].update(verdict="worse", ci95=[5.0, 6.0]))
    done = taetpu("check", claims(here, "low-lr is worse by at least 4"))
    assert (done.code, done.out) == (3, "")
    assert "no claim was" in done.err
    assert re.search(r"\bsmall .* results\.json: arms\[low-lr\]", " ".join(done.err.split()))


def test_claims_about_a_study_that_was_not_run_say_to_run_it(taetpu, here):
    (here / "claims.yaml").write_text("study: my-copying\nclaims: [low-lr is worse]\n")
    done = taetpu("check", "claims.yaml")
    assert done.code == 2
    assert "claims.yaml:1 at study" in done.err
    assert "'my-copying' in ./runs" in done.err
    assert "Run the study" in done.err


def test_claims_about_a_study_without_results_are_refused(taetpu, here, study):
    (study / "results.json").unlink()
    done = taetpu("check", claims(here, "low-lr is worse"))
    assert done.code == 2
    assert "no results yet" in done.err
    assert f"remedy: Run `taetpu report {study}`" in done.err


@pytest.mark.parametrize(("text", "line"), [("", ""), ("# nothing yet\n", ""), ("[]\n", ":1")])
def test_malformed_claims_file_is_refused(taetpu, here, text, line):
    (here / "claims.yaml").write_text(text)
    code, out, err = taetpu("check", "claims.yaml")
    assert (code, out) == (2, "")
    assert f"where:  claims.yaml{line}\n" in err
    assert "study: NAME" in err
    assert "taetpu new" not in err
