"""Every program of `misbehaving` has the expected end, metrics, output and error, and leaves no process behind."""

import math
import os
from pathlib import Path

import pytest
from tests.programs.misbehaving import PROGRAMS, describe, run_programs


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcomes of the programs of the selected tests, which run side by side."""
    items = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["name"] for item in items if hasattr(item, "callspec")}
    chosen = PROGRAMS if len(items) > len(names) else {name: PROGRAMS[name] for name in PROGRAMS if name in names}
    return run_programs(chosen, tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that(name, outcomes):
    program, outcome = PROGRAMS[name], outcomes[name].result()
    ending = outcome.ending
    code = ending.code if ending.signal is None else -ending.signal
    assert (ending.cause, code) == (program.cause, program.code_or_signal)
    loss = outcome.reader.last.get("loss")
    assert loss == program.loss or (loss is not None and program.loss is not None and math.isnan(loss + program.loss))
    assert (ending.lines or ("",))[-1] == program.last_line
    assert program.stored in outcome.output
    assert len(ending.left) == program.left
    assert bool(program.error) == (outcome.error is not None)
    assert program.error in str(outcome.error or "")
    assert ending.output_bytes < 2**20 or len(outcome.output) < 6 * 2**20


def test_no_process_is_left(outcomes):
    for outcome in outcomes.values():
        outcome.result()
    folders = {os.readlink(link) for link in Path("/proc").glob("[0-9]*/cwd") if is_readable(link)}
    assert not [folder for folder in folders if "/programs" in folder and folder.endswith("/run")]


def is_readable(link: Path) -> bool:
    try:
        os.readlink(link)
    except OSError:  # the process has ended, or belongs to another user
        return False
    return True


def test_the_table(outcomes, wording):
    wording("\n".join(describe(name, outcome.result()) for name, outcome in outcomes.items()))
