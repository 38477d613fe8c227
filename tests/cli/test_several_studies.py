"""`taetpu run A.yaml B.yaml`: all files are checked first, each study runs, and the worst exit code counts."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import command
from tests.program_studies import TRAIN, study_data
from tests.small import TINY
from tests.suites import first_by_default

from taetpu.cli import several_studies

PLUGIN = """\
import equinox as eqx
from taetpu.plugin import Component, register


@register("after", "times")
class Times(Component):
    def init(self, dims, *, key):
        return TimesAfter()


class TimesAfter(eqx.Module):
    def __call__(self, x, ctx):
        return {factor} * x
"""


@pytest.fixture
def write(here):
    """`write(name, **changes) -> str`: a study file of the tiny program. A change `base` is merged."""
    (here / "train.py").write_text(TRAIN)
    base = {**study_data()["base"], "steps": 3}

    def make(name: str, **changes) -> str:
        data = study_data(**{**changes, "study": name, "base": base | changes.get("base", {})})
        (here / f"{name}.yaml").write_text(yaml.safe_dump(data))
        return f"{name}.yaml"

    return make


def trained(folder: Path) -> list[str]:
    return sorted(file.parent.name for file in folder.glob("*/results.json"))


@pytest.mark.slow
def test_a_failed_study_stops_no_other_and_the_worst_code_counts(process, here, write):
    files = write("broken", base={"lr": "high"}), write("next")
    done = process("run", *files, "--set", "steps=2", "--root", "kept", "--json")
    assert done.code == 3
    documents, rest = [], done.out.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        documents.append(document)
        rest = rest[end:].strip()
    assert [(one["study"], one["arms"][0]["runs"][0]["outcome"]) for one in documents] == [
        ("broken", "unfinished"), ("next", "finished"),
    ]  # fmt: skip
    assert [line.split()[0] for line in done.err.splitlines()[-2:]] == ["broken.yaml", "next.yaml"]
    assert trained(here / "kept") == ["broken", "next"]


def test_nothing_is_run_if_a_later_file_has_an_error(taetpu, here, write):
    first, bad = write("a"), write("b", measure={"primary": "lost", "better": "min"})
    (here / "s.yaml").write_text(TINY + "sedes: 3\n")
    done = taetpu("run", first, bad, "s.yaml", "missing.yaml")
    assert done.code == 2
    assert not (here / "runs").exists()
    for file, named in (("b.yaml", "'lost'"), ("s.yaml", "'sedes'"), ("missing.yaml", "")):
        assert file in done.err
        assert named in done.err


@pytest.mark.parametrize("options", [["--pack", "2"], ["--check"]])
def test_options_are_checked_for_each_study_before_the_first(taetpu, here, write, options):
    """--pack is for models, and --check is for programs."""
    done = taetpu("run", "s.yaml", write("a"), *options)
    assert done.code == 2
    assert options[0] in done.err
    assert not (here / "runs").exists()


def test_two_studies_of_one_name_are_refused(taetpu, here, write):
    write("a")
    (here / "b.yaml").write_text((here / "a.yaml").read_text())
    done = taetpu("run", "a.yaml", "b.yaml")
    assert done.code == 2
    assert "'a'" in done.err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(("number", "code"), first_by_default([(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_a_signal_stops_all(here, write, number, code):
    """A terminal sends Ctrl-C to all processes of the command; `kill` sends SIGTERM to the first."""
    words = command("run", write("slow", base={"sleep": 60}), write("next"))
    with subprocess.Popen(words, cwd=here, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        started = here / "runs/slow/study.yaml"
        until = time.monotonic() + 300
        while not started.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(0.5)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == code
    assert not (here / "runs/next").exists()
    assert said.count("interrupted") == 1
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("codes", "worst"), [((0, 0), 0), ((0, 75), 75), ((75, 3), 3), ((3, 2, 0), 2), ((2, 1), 1), ((0, -9), 1)]
)
def test_the_worst_code(taetpu, here, write, monkeypatch, codes, worst):
    """A process that a signal ended counts as a bug."""
    left = iter(codes)
    monkeypatch.setattr(several_studies, "_run_process", lambda words: next(left))
    done = taetpu("run", *[write(f"s{number}") for number in range(len(codes))])
    assert done.code == worst
    assert len(done.err.splitlines()) == 2 * len(codes)


@pytest.mark.slow
def test_models_and_programs_and_plugins_of_one_name(here, write):
    """Two plug-ins of the same kind name, in different files, do not collide."""
    for name, factor in (("one", 2), ("two", 3)):
        (here / f"{name}.py").write_text(PLUGIN.format(factor=factor))
        (here / f"{name}.yaml").write_text(
            TINY.replace("tiny", name) + f"seeds: 1\nplugins: [{name}.py]\narms: {{scaled: {{model.after: times}}}}\n"
        )
    words = command("run", "one.yaml", write("program"), "two.yaml")
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert trained(here / "runs") == ["one", "program", "two"]
