"""`taetpu run` with flags for XLA, and the programs that it dumps."""

import json
import re

import jax
import pytest
from tests.small import TINY


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_unknown_flag_ends_the_command_with_its_name_and_no_trace(process, command):
    done = process(command, "s.yaml", "--xla-flags", "--xla_no_such_flag=1")
    assert done.code == 2
    assert re.match(r"error: jaxlib \S+ has no flag --xla_no_such_flag=1\n  where:  --xla-flags", done.err)
    assert "remedy" in done.err


@pytest.mark.parametrize("command", [("plan", "s.yaml"), ("plan", "s.yaml", "--diff", "low-lr"), ("run", "s.yaml")])
def test_a_jax_that_does_not_start_is_refused_in_words(taetpu, monkeypatch, command):
    def start():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", start)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    done = taetpu(*command)
    assert done.code == 2
    assert done.err.startswith("error: jax does not start with JAX_PLATFORMS=cuda: it finds no such device\n")
    assert "remedy: unset JAX_PLATFORMS" in done.err


@pytest.mark.slow
def test_flags_are_kept_with_every_result_and_dumps_with_the_study(here, process):
    (here / "s.yaml").write_text(TINY)
    flag = "--xla_cpu_enable_fast_math=false"
    done = process("run", "s.yaml", "--root", "root", "--xla-flags", flag, "--dump", "--profile", "2")
    assert done.code == 0, done.err
    results = list((here / "root").glob("tiny/runs/*/*/result.json"))
    assert results
    assert all(json.loads(file.read_text())["environment"]["xla_flags"] == [flag] for file in results)
    (folder,) = (here / "root").glob("tiny/dumps/*")
    told = re.sub(r"\s+", " ", done.out + done.err)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert f"dumps: {len(files)} files" in told
    assert any(".jit_advance." in path.name for path in files)
    assert "profile of 2 steps" in told
