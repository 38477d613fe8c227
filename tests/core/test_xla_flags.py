"""XLA flags are checked before anything starts, and recorded if they can affect results."""

from importlib.util import find_spec

import pytest

from taetpu.core.errors import UserError
from taetpu.core.xla_flags import (
    check_flags,
    enable_dumps,
    folder_size,
    program_flags,
    relevant_flags,
    set_flags,
    tpu_flags,
)

COUNT = "--xla_force_host_platform_device_count=2"


def test_program_flags_omit_flags_without_effect(tmp_path):
    environ = {"XLA_FLAGS": f"{COUNT} --xla_cpu_enable_fast_math=false"}
    before = program_flags(environ)
    assert before == {"xla_flags": ["--xla_cpu_enable_fast_math=false"]}
    enable_dumps(tmp_path / "a folder", environ)
    assert environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"  # programs from the cache would not be dumped
    assert program_flags(environ) == before
    assert relevant_flags(COUNT) == []
    environ["LIBTPU_INIT_ARGS"] = "--xla_tpu_a=1 --xla_tpu_b=2"
    assert program_flags(environ)["libtpu_init_args"] == ["--xla_tpu_a=1", "--xla_tpu_b=2"]


@pytest.mark.slow
def test_an_unknown_flag_is_rejected_and_the_environment_stays_unchanged(tmp_path):
    environ = {"XLA_FLAGS": COUNT}
    with pytest.raises(UserError, match="has no flag --xla_no_such_flag=1") as refused:
        set_flags("--xla_cpu_enable_fast_math=false --xla_no_such_flag=1", dev=tmp_path, environ=environ)
    assert "--xla-flags or XLA_FLAGS" in str(refused.value)
    assert environ == {"XLA_FLAGS": COUNT}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("xla_cpu_enable_fast_math=false", "'xla_cpu_enable_fast_math=false' .*not a flag"),
        pytest.param(
            "--xla_cpu_enable_fast_math=maybe",
            "maybe for flag xla_cpu_enable_fast_math",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_malformed_flags_and_values_are_rejected(given, problem, tmp_path):
    with pytest.raises(UserError, match=problem):
        set_flags(given, dev=tmp_path, environ={})


def test_libtpu_flags_are_rejected_without_a_tpu(tmp_path):
    with pytest.raises(UserError, match="requires a TPU"):
        set_flags(libtpu="--xla_tpu_enable_latency_hiding_scheduler=true", dev=tmp_path, environ={})


@pytest.mark.slow
def test_flags_are_appended_to_those_of_the_environment(tmp_path):
    environ = {"XLA_FLAGS": COUNT}
    set_flags("--xla_cpu_enable_fast_math=false", dev=tmp_path, environ=environ)
    assert environ["XLA_FLAGS"] == f"{COUNT} --xla_cpu_enable_fast_math=false"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_flags_are_checked_without_a_tpu():
    with pytest.raises(UserError, match=r"libtpu .* has no flag --xla_tpu_no_such_flag=true"):
        check_flags("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=true --xla_tpu_no_such_flag=true")


def test_folder_size_counts_nested_files(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "below/b").write_bytes(b"45")
    assert folder_size(tmp_path) == (2, 5)


def test_tpu_flags_omit_flags_of_other_platforms():
    environ = {"XLA_FLAGS": f"{COUNT} --xla_cpu_a=1 --xla_gpu_b=2 --xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}
    assert tpu_flags(environ) == {"XLA_FLAGS": "--xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}
    assert tpu_flags({"XLA_FLAGS": COUNT}) == {}


@pytest.mark.slow
def test_accepted_flags_are_remembered_and_rejected_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path))
    check_flags("XLA_FLAGS", COUNT)
    with pytest.raises(UserError, match="no flag --xla_no_such_flag=1"):
        check_flags("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    check_flags("XLA_FLAGS", COUNT)
    with pytest.raises(pytest.fail.Exception):
        check_flags("XLA_FLAGS", "--xla_no_such_flag=1")
