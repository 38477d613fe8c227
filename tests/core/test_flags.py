"""Flags of XLA are tried before anything starts, and known where results may depend on them."""

from importlib.util import find_spec

import pytest

from taetpu.core.errors import UserError
from taetpu.core.flags import (
    check_flags,
    enable_dumps,
    environment_without_dumps,
    folder_size,
    program_flags,
    relevant_flags,
    set_flags,
    tpu_flags,
)

COUNT = "--xla_force_host_platform_device_count=2"


def test_what_changes_no_program_is_left_out_of_what_results_depend_on(tmp_path):
    environ = {"XLA_FLAGS": f"{COUNT} --xla_cpu_enable_fast_math=false"}
    before = program_flags(environ)
    assert before == {"xla_flags": ["--xla_cpu_enable_fast_math=false"]}
    enable_dumps(tmp_path / "a folder", environ)
    assert program_flags(environ) == before
    assert relevant_flags(COUNT) == []
    environ["LIBTPU_INIT_ARGS"] = "--xla_tpu_a=1 --xla_tpu_b=2"
    assert program_flags(environ)["libtpu_init_args"] == ["--xla_tpu_a=1", "--xla_tpu_b=2"]


def test_children_dump_nothing(tmp_path):
    environ = {"XLA_FLAGS": COUNT, "OTHER": "1"}
    enable_dumps(tmp_path, environ)
    assert environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"  # what is found in the cache would not be dumped
    assert environment_without_dumps(environ) == {**environ, "XLA_FLAGS": COUNT}
    assert environment_without_dumps({"OTHER": "1"}) == {"OTHER": "1"}


@pytest.mark.slow
def test_an_unknown_flag_is_refused_by_name_before_anything_is_set(tmp_path):
    environ = {"XLA_FLAGS": COUNT}
    with pytest.raises(UserError, match="has no flag --xla_no_such_flag=1") as refused:
        set_flags("--xla_cpu_enable_fast_math=false --xla_no_such_flag=1", dev=tmp_path, environ=environ)
    assert "--xla-flags or XLA_FLAGS" in str(refused.value)
    assert environ == {"XLA_FLAGS": COUNT}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("xla_cpu_enable_fast_math=false", "'xla_cpu_enable_fast_math=false' is not a flag"),
        pytest.param(
            "--xla_cpu_enable_fast_math=maybe",
            "value maybe for flag xla_cpu_enable_fast_math",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_no_flag_or_no_value_is_refused(given, problem, tmp_path):
    with pytest.raises(UserError, match=problem):
        set_flags(given, dev=tmp_path, environ={})


def test_flags_that_nothing_would_read_are_refused(tmp_path):
    with pytest.raises(UserError, match="requires a TPU"):
        set_flags(libtpu="--xla_tpu_enable_latency_hiding_scheduler=true", dev=tmp_path, environ={})


@pytest.mark.slow
def test_flags_are_added_to_those_of_the_environment_which_are_tried_too(tmp_path):
    environ = {"XLA_FLAGS": COUNT}
    set_flags("--xla_cpu_enable_fast_math=false", dev=tmp_path, environ=environ)
    assert environ["XLA_FLAGS"] == f"{COUNT} --xla_cpu_enable_fast_math=false"
    with pytest.raises(UserError, match="--xla_no_such_flag"):
        set_flags(dev=tmp_path, environ={"XLA_FLAGS": "--xla_no_such_flag=1"})


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_is_asked_without_a_tpu():
    check_flags("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=true")
    with pytest.raises(UserError, match=r"libtpu .* has no flag --xla_tpu_no_such_flag=true"):
        check_flags("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=true --xla_tpu_no_such_flag=true")


def test_the_size_of_dumps_is_that_of_the_files_below(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "below/b").write_bytes(b"45")
    assert folder_size(tmp_path) == (2, 5)


def test_the_compiler_for_tpus_is_given_what_programs_there_depend_on():
    environ = {"XLA_FLAGS": f"{COUNT} --xla_cpu_a=1 --xla_gpu_b=2 --xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}
    assert tpu_flags(environ) == {"XLA_FLAGS": "--xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}
    assert tpu_flags({"XLA_FLAGS": COUNT}) == {}
