"""What `taetpu run --on tpu` refuses before anything is made, and what it says that it would do."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.places import Place
from tests.cloud.test_interrupted import HOLD
from tests.clouds import BUCKET

from taetpu.cli.cloud import here as settings_here
from taetpu.cli.on_tpu import leave
from taetpu.cloud.spec import check_stack, stack_of
from taetpu.cloud.state import Record, Records, Used

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
        ((*TPU, "--profile", "-1"), "-1 steps cannot be profiled", "profile", "a number of steps, e.g. 20"),
        (
            (*TPU, "--pack", "foo", "--dry-run"),
            "'foo' is no way to pack runs",
            "pack",
            "auto, measured, off, or the most runs in a pack, e.g. 8",
        ),
        (
            (*TPU, "--audit", "5", "--reuse", "gs://b/c"),
            "5.0 is no share of the reused runs",
            "audit",
            "from 0 to 1, e.g. 0.05",
        ),
        (
            (*TPU, "--audit", "0.5"),
            "--audit 0.5 trains reused runs again, and none is reused",
            "--audit",
            "--reuse ROOT, or leave --audit out",
        ),
        (
            (*TPU, "--coordinator", "a:1"),
            "processes of this machine do not meet on a TPU",
            "--coordinator",
            "leave it out, and JAX_COORDINATOR_ADDRESS unset: the hosts of a TPU are told where they meet",
        ),
    ],
)
def test_refused_before_anything_is_asked_for(taetpu, changes, words, problem, where, remedy):
    told = taetpu(*words)
    place = f"  where:  {where}\n" if where else ""
    assert (told.code, told.err) == (2, f"error: {problem}\n{place}  remedy: {remedy}\n")
    assert changes() == []


@pytest.mark.parametrize("option", ["--xla-flags", "--libtpu-args"])
def test_flags_are_tried_here_before_anything_is_asked_for(taetpu, changes, monkeypatch, option):
    if option == "--libtpu-args":
        pytest.importorskip("libtpu")
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    told = taetpu(*TPU, option, "--xla_nonsense=1", "--dry-run")
    assert told.code == 2
    assert re.match(rf"error: \S+ \S+ knows no flag --xla_nonsense=1\n  where:  {option} or", told.err)
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
        (("--max-hours", "1000"), "a TPU cannot be kept for 1000 hours", "0.01 to 168"),
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
    what = "tpu-me-small: v5litepod-8 (8 chips, 1 host), spot, by tpu-api with v2-alpha-tpuv5-lite"
    assert told.err.replace("\n  ", " ").startswith(what)
    across = "warning: the bucket is in us-east5 and your zones are in us-west4: every checkpoint and result that"
    assert across in told.err.replace("\n  ", " ")
    assert "made again where it is lost, at most 20 times and for 4 h together" in lines
    assert lines[-2:] == [
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


V6E = ("run", "s.yaml", "--on", "tpu", "--type", "v6e-8", "--spot", "--zone", "us-east5-b", "--dry-run")


@pytest.fixture
def lab(fake, monkeypatch):
    """`lab(**more)`: a machine of this user that is there, see `Place.made`."""
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    place = Place()
    place.world = fake.world
    return lambda name="lab", **more: place.made(name, **more)


def test_a_machine_of_its_user_is_told_to_be_kept(taetpu, changes, lab):
    lab(hours=2.0)
    code, _, err = taetpu(*V6E, "--tpu", "lab", "--max-hours", "0.5")
    said = " ".join(err.split())
    assert code == 0
    found = re.search(r"deleted in 2:00 h, or once idle for 30 min: \$(\S+) an hour, at most \$(\S+) in 2 h", said)
    assert found
    assert float(found[2]) == pytest.approx(2 * float(found[1]), abs=0.02)
    assert "lab was not made for this study: it is made again only if it is gone for good" in said
    assert f"train small there into gs://{BUCKET}/studies/small, then keep the TPU" in said
    limit = f"{1.5 * float(found[1]):.2f}"
    refused = taetpu(*V6E, "--tpu", "lab", "--max-hours", "0.5", "--max-usd", limit)
    words = f"may cost ${found[2]} in 2 h, more than max_usd {float(limit):g}"
    assert (refused.code, words in " ".join(refused.err.split())) == (2, True)
    assert changes() == []


def test_a_machine_that_was_made_for_the_study_is_told_to_be_deleted(taetpu, lab):
    lab("tpu-me-small", study="small")
    said = " ".join(taetpu(*V6E).err.split())
    assert "is there already, in us-east5-b" in said
    assert "then delete the TPU" in said
    assert "then keep the TPU" in " ".join(taetpu(*V6E, "--keep").err.split())


def test_hours_that_were_used_are_told_and_not_given_again(taetpu, changes, lab, fake):
    records, used = Records(fake.world.project), Used("small", 0.0, hours=3.0)
    records.write(Record(fake.world.project, "tpu-me-small", used=used))
    said = " ".join(taetpu(*V6E).err.split())
    assert "of the 4 h that its machines may take together 3 are used" in said
    assert re.search(r"at most \$\S+ in 1 h", said)
    assert "of it spent already" not in said
    records.write(Record(fake.world.project, "tpu-me-small", used=replace(used, usd=33.6)))
    said = " ".join(taetpu(*V6E, "--max-usd", "50").err.split())
    assert "max_usd 50 is for all of these machines together: $33.60 of it spent already" in said
    refused = taetpu(*V6E, "--max-usd", "40")
    words = "may cost $11.23 in 1 h beside $33.60 that is spent already, more than max_usd 40"
    assert (refused.code, words in " ".join(refused.err.split())) == (2, True), refused.err
    records.write(Record(fake.world.project, "tpu-me-small", used=replace(used, hours=3.9)))
    over = taetpu(*V6E)
    assert (over.code, "given up: the 4 h that it may take are over" in over.err) == (3, True)
    assert re.search(r"at most \$\S+ in 4.1 h", " ".join(taetpu(*V6E, "--max-hours", "8").err.split()))
    assert changes() == []


def test_what_the_machine_that_is_there_has_used_counts_too(taetpu, changes, lab, fake):
    lab("tpu-me-small", study="small", hours=1.0)
    now = fake.world.now()
    used = Used("small", now - 7200, hours=1.0, usd=10.0)
    records = Records(fake.world.project)
    ready = Record(fake.world.project, "tpu-me-small", zones=("us-east5-b",), used=used)
    records.write(replace(ready, since=now - 7200, until=now + 3600, usd_per_hour=11.0))
    said = " ".join(taetpu(*V6E, "--max-usd", "50").err.split())
    assert "of the 4 h that its machines may take together 3 are used" in said
    assert re.search(r"max_usd 50 is for all of these machines together: \$32.0\d of it spent already", said)
    refused = " ".join(taetpu(*V6E, "--max-usd", "43").err.split())
    assert re.search(r"may cost \$11.2\d in 1 h beside \$32.0\d that is spent already, more than max_usd 43", refused)
    short = " ".join(taetpu(*V6E, "--max-usd", "50", "--max-hours", "3.1").err.split())
    assert "not made again should it be lost: too little is left of its hours" in short
    assert "made anew should it be lost" not in short
    records.write(replace(ready, since=now - 7200, until=now + 3600))
    unknown = taetpu(*V6E, "--max-usd", "900")
    assert (unknown.code, "what the earlier machines of tpu-me-small cost is not known" in unknown.err) == (2, True)
    assert changes() == []


def test_zones_beside_the_bucket_come_first(taetpu, lab, monkeypatch):
    monkeypatch.setenv("TAETPU_REGION", "us-central1")
    said = taetpu(*V6E[:7], "--dry-run").err
    zones = [line.split()[0] for line in said.splitlines() if line.startswith("  ") and " an hour" in line]
    assert zones[:2] == ["us-east5-a", "us-east5-b"], "whatever `region` says"
    assert "us-central1-b" in zones
    assert "warning: the bucket is in us-east5 and your zones are in " in said


@pytest.mark.parametrize(
    ("owner", "study", "name"),
    [("me", "small", "tpu-me-small"), ("jo_doe", "a-b", "tpu-jo-doe-a-b")],
)
def test_the_name_that_a_studys_machine_has(owner, study, name):
    assert stack_of(owner, study) == name


def test_names_that_cannot_be_whole_are_told_apart_by_their_end():
    names = ["A", "a.b", "a_b", "a+b", "x" * 60, "x" * 61, "x" * 30 + "-" * 20]
    found = [check_stack(stack_of("me", name)) for name in names]
    assert len(set(found)) == len(names)
    assert max(map(len, found)) == 48


def test_a_plan_as_json_is_the_plan(taetpu, changes, lab):
    told = taetpu(*V6E, "--json")
    plan = json.loads(told.out)
    assert {key: plan[key] for key in ("study", "into", "left", "hours", "recoveries", "keep", "tpu", "there")} == {
        "study": "small",
        "into": f"gs://{BUCKET}/studies/small",
        "left": True,
        "hours": 4.0,
        "recoveries": 20,
        "keep": False,
        "tpu": "tpu-me-small",
        "there": None,
    }
    (zone,) = plan["zones"]
    assert (zone["zone"], zone["hours"]) == ("us-east5-b", 4.0)
    assert plan["usd_at_most"] == zone["usd_at_most"] == pytest.approx(4 * 8 * zone["usd_per_chip_hour"])
    assert f"at most ${plan['usd_at_most']:.2f} in 4 h" in " ".join(told.err.split())
    lab(hours=2.0)
    plan = json.loads(taetpu(*V6E, "--tpu", "lab", "--json").out)
    assert (plan["keep"], plan["there"]["zone"], plan["there"]["state"]) == (True, "us-east5-b", "ready")
    assert plan["there"]["left"]["hours"] == pytest.approx(2.0, abs=0.1)
    assert changes() == []


def test_a_machine_that_another_command_deletes_already_is_left_to_it(fake, here, capsys):
    """As where the same study was followed from two terminals."""
    place = settings_here()
    command = [sys.executable, "-c", HOLD, "tpu-me-small"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        leave(place, "tpu-me-small", keep=False)
        other.kill()
    problem = f"another command (process {other.pid}) is changing the TPU 'tpu-me-small'"
    words = f"{problem}: its deletion is left to that one, `taetpu tpu list` shows what is there\n"
    assert capsys.readouterr().err == words
