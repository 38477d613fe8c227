"""The Dockerfile's properties, read out of its text: no engine builds it here."""

import fnmatch
import re
import subprocess
from importlib.resources import files

import pytest

from taetpu.cloud.image.context import Recipe

INSTRUCTIONS = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "CMD"}


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Instructions with what they say, in order; lines that go on are joined."""
    text = files("taetpu.cloud").joinpath("vm", "Dockerfile").read_text(encoding="utf-8")
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = [line.strip() for line in re.sub(r"\\\n\s*", "", bare).splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined]


def of(lines, instruction):
    return [text for name, text in lines if name == instruction]


def test_only_known_instructions_stand_in_it_and_its_base_is_an_argument_with_a_digest(lines):
    assert {name for name, _ in lines} == INSTRUCTIONS
    assert of(lines, "FROM") == ["${PYTHON}${PYTHON_DIGEST}"]
    before = lines[: [name for name, _ in lines].index("FROM")]
    assert before == [("ARG", "PYTHON=python:3.12-slim-bookworm"), ("ARG", 'PYTHON_DIGEST=""')]


def test_every_argument_that_is_given_is_declared_and_every_one_declared_is_used(lines):
    declared = {text.partition("=")[0] for text in of(lines, "ARG")}
    every = Recipe("torch_tpu", "https://example.org/cpu", "python:3.13-slim", f"sha256:{'0' * 64}").arguments()
    assert set(every) == declared
    rest = "\n".join(f"{name} {text}" for name, text in lines if name != "ARG")
    for name in declared:
        assert re.search(rf"\${{?{name}\b", rest), name
    assert every["PYTHON_DIGEST"] == f"@sha256:{'0' * 64}"


def test_everything_that_is_copied_is_in_the_context_and_all_of_the_context_is_copied(lines, plain):
    patterns = [name for text in of(lines, "COPY") for name in text.split()[:-1]]
    for pattern in patterns:
        assert fnmatch.filter(plain.files, pattern), pattern
    copied = {name for pattern in patterns for name in fnmatch.filter(plain.files, pattern)}
    assert copied == set(plain.files) - {"Dockerfile"}


def test_what_it_runs_by_default_is_there(lines):
    assert of(lines, "CMD") == ['["taetpu", "--help"]']
    assert any("jax/bin/taetpu --version" in text for text in of(lines, "RUN")), "the build fails where it does not run"
    assert any(text.startswith("PATH=/opt/taetpu/jax/bin:") for text in of(lines, "ENV"))


def test_no_install_is_without_pins_and_every_environment_is_checked(lines):
    installs = [part for text in of(lines, "RUN") for part in text.split("&&") if "pip install" in part]
    assert len(installs) == 2
    assert all("--constraint " in one or "--requirement " in one for one in installs)
    assert sum(text.count("pip check") for text in of(lines, "RUN")) == 2


def test_no_secret_no_cuda_and_no_container_registry_are_in_it(lines):
    text = "\n".join(f"{name} {text}" for name, text in lines)
    assert not re.search(r"secret|password|token|key|credential|cuda|nvidia|gcr\.io|sudo|XRT|BF16", text, re.I)
    assert not any(name in ("ADD", "ONBUILD") for name, _ in lines)


def test_its_shell_is_correct(lines):
    for text in of(lines, "RUN"):
        done = subprocess.run(["sh", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
