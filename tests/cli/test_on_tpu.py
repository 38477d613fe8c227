"""What `taetpu run --on tpu` refuses before anything is made, and what it says that it would do."""

import re
from pathlib import Path

import pytest
from tests.clouds import BUCKET

TPU = ("run", "s.yaml", "--on", "tpu", "--type", "v5e-8")


@pytest.fixture
def changes(fake):
    """`changes()`: the calls so far that were made to change something."""
    return lambda: [call.name for call in fake.world.changes()]


@pytest.mark.parametrize(
    ("words", "problem", "where", "remedy"),
    [
        (
            TPU,
            "no bucket is named, and results cannot stay on a machine that goes",
            "",
            "`taetpu bucket create NAME --write`, or --root gs://BUCKET/FOLDER",
        ),
        (
            (*TPU, "--root", "runs"),
            "a machine that goes cannot keep results at 'runs'",
            "--root",
            "--root gs://BUCKET/FOLDER, or `bucket` in taetpu.toml",
        ),
        (
            (*TPU, "--root", "gs://none/here"),
            "cannot list gs://none/here/small: there is no bucket 'none'",
            "",
            "`taetpu bucket create none --region REGION` makes it, if the name is not misspelt",
        ),
        (("run", "s.yaml", "--on", "moon"), "there is no machine 'moon'", "--on", "--on tpu"),
        (
            ("run", "s.yaml", "--type", "v5e-8"),
            "it is for a TPU that is made, and --on tpu is not said",
            "--type",
            "--on tpu; what would be trained here `taetpu plan` says",
        ),
        (
            ("run", "s.yaml", "--dry-run"),
            "it is for a TPU that is made, and --on tpu is not said",
            "--dry-run",
            "--on tpu; what would be trained here `taetpu plan` says",
        ),
        (
            (*TPU, "--reuse", "runs"),
            "no TPU sees 'runs'",
            "--reuse",
            "a root in a bucket: --reuse gs://BUCKET/FOLDER",
        ),
    ],
)
def test_refused_before_anything_is_asked_for(taetpu, changes, words, problem, where, remedy):
    told = taetpu(*words)
    place = f"  where:  {where}\n" if where else ""
    assert (told.code, told.err) == (2, f"error: {problem}\n{place}  remedy: {remedy}\n")
    assert changes() == []


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (("--spot", "--flex-start"), "--spot and --flex-start exclude each other", "give one of them"),
        (
            ("--max-usd", "1", "--zone", "us-west4-a"),
            "v5litepod-8 (on-demand) in us-west4-a may cost $38.40 in 4 h, more than max_usd 1",
            "--max-hours 0.1 stays below it, or raise --max-usd",
        ),
        (("--max-hours", "1000"), "a TPU cannot be kept for 1000 hours", "above 0, to 168"),
        ((), "nobody is here to agree to this", "give --yes to do it, --dry-run to see what it is"),
    ],
)
def test_machines_that_are_refused(taetpu, changes, monkeypatch, words, problem, remedy):
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    told = taetpu(*TPU, *words)
    assert told.code == 2
    assert f"error: {problem}\n" in told.err
    assert f"  remedy: {remedy}\n" in told.err
    assert changes() == []


def test_which_tpu_must_be_said(taetpu, changes, monkeypatch):
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    told = taetpu(*TPU[:-2])
    assert (told.code, told.err.splitlines()[0]) == (2, "error: which TPU is not said")
    assert changes() == []


def test_a_dry_run_says_all_and_changes_nothing(taetpu, changes, monkeypatch, here):
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    told = taetpu(*TPU, "--spot", "--zone", "us-west4-a", "--dry-run")
    assert told.code == 0
    lines = told.err.splitlines()
    assert lines[0] == "tpu-me: v5litepod-8 (8 chips, 1 host), spot, by tpu-api with v2-alpha-tpuv5-lite"
    assert lines[-3:] == [
        "made again where it is lost, at most 20 times and for 4 h together",
        f"train small there into gs://{BUCKET}/studies/small, then delete the TPU",
        "dry run: nothing was changed",
    ]
    assert any(line.startswith("  us-west4-a  $") and "at most $" in line for line in lines)
    assert changes() == []
    assert not (here / "cloud").exists()


@pytest.mark.parametrize(("named", "meant"), [(f"gs://{BUCKET}/mine", "mine"), ("elsewhere", "studies")])
def test_a_root_of_the_environment_counts_if_it_is_in_a_bucket(taetpu, fake, monkeypatch, named, meant):
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    monkeypatch.setenv("TAETPU_ROOT", named)
    told = taetpu(*TPU, "--zone", "us-west4-a", "--dry-run")
    assert f"train small there into gs://{BUCKET}/{meant}/small, then delete the TPU" in told.err


def test_files_that_are_named_by_where_they_lie_here(taetpu, changes, here, monkeypatch):
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    text = (here / "s.yaml").read_text()
    plugin = sorted((Path(__file__).parents[2] / "examples" / "plugins").glob("*.py"))[0]
    (here / "a.txt").write_text("the text of this machine " * 99)
    task = f"{{kind: text, source: {here}/a.txt, tokenizer: {{kind: char}}, seq_len: 8}}"
    for name, study in {
        str(plugin): f"{text}plugins: [{plugin}]\n",
        f"{here}/a.txt": re.sub(r"\{kind: copy[^}]*\}", task, text),
    }.items():
        (here / "s.yaml").write_text(study)
        told = taetpu(*TPU)
        problem = f"error: {name!r} is a path of this machine alone\n  where:  s.yaml\n"
        assert (told.code, told.err[: len(problem)]) == (2, problem)
    assert changes() == []
