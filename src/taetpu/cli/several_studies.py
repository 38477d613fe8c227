"""`taetpu run` with several study files: all are checked first, then each is run in a separate process.

A process for each study, so that JAX holds no accelerator while the programs of another study run, that plug-ins of two
studies may have the same names, and that a process which the system ends for lack of memory ends one study only.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from taetpu.cli.options import to_argv
from taetpu.cli.output import log
from taetpu.cli.program_studies import check_options, has_program, refuse_check
from taetpu.core.errors import ErrorList, UserError
from taetpu.core.signals import record_signal

if TYPE_CHECKING:
    from taetpu.cli.run import RunOptions

BUG, INTERRUPTED, TERMINATED = 1, 128 + signal.SIGINT, 128 + signal.SIGTERM
OUTCOMES = {0: "finished", 75: "left to other shards", 3: "has failed runs", 2: "was refused", BUG: "ended with a bug"}
"""Exit codes of `taetpu run`, from the best to the worst."""
POLL_SECONDS = 0.2


def run_studies(options: "RunOptions", files: list[Path]) -> int:
    """Check several studies, run them one after the other, and return the worst exit code.

    A study that fails does not stop the next ones. Ctrl-C does.

    Args:
        options: Options that apply to each study.
        files: The study files.

    Raises:
        UserError: Before the first study is run, if one of them cannot be loaded, or if two have the same name.
    """
    check_studies(options, files)
    words = to_argv(options, type(options))
    codes = dict[Path, int]()
    for number, file in enumerate(files, 1):
        log(f"study {number} of {len(files)}: {file}")
        codes[file] = _run_process([sys.executable, "-P", "-m", "taetpu", "run", *words, "--", str(file)])
        if codes[file] in (INTERRUPTED, TERMINATED):
            sys.exit(codes[file])  # that process has said what to do
    for file, code in codes.items():
        log(f"{file} {OUTCOMES.get(code) or f'was ended by {signal.Signals(-code).name}'}")
    return max((code if code in OUTCOMES else BUG for code in codes.values()), key=[*OUTCOMES].index)


def _run_process(words: list[str]) -> int:
    """Run a command with this process's streams, and return its exit code; that of the signal if one ends both.

    A terminal sends Ctrl-C to both processes. SIGTERM is passed on.
    """
    with (
        record_signal(signal.SIGINT) as interrupted,
        record_signal(signal.SIGTERM) as terminated,
        subprocess.Popen(words) as process,
    ):
        asked = False
        while process.poll() is None:
            if terminated() and not asked:
                process.terminate()
                asked = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    if interrupted():
        return INTERRUPTED
    return TERMINATED if terminated() else process.returncode


def check_studies(options: "RunOptions", files: list[Path]) -> None:
    """Load all studies. Raise the errors of all of them together as one `UserError`."""
    errors, names = ErrorList(), dict[str, Path]()
    for file in files:
        with errors.collect():
            name = load_name(replace(options, study=file, more=None))
            if name in names:
                problem = f"{names[name]} and {file} are both studies named {name!r}"
                raise UserError(problem, file=file, remedy="Give each study a different name (key `study`).")
            names[name] = file
    errors.raise_all()


def load_name(options: "RunOptions") -> str:
    """Load one study with the options of the command line, and return its name. No device is used, no data is read."""
    if has_program(options.study):
        from taetpu.spec.programs.loading import load_program_study

        check_options(options)
        return load_program_study(options.study, options.sets or []).name
    refuse_check(options)
    import jax

    from taetpu.study.loading import load_study

    jax.config.update("jax_platforms", "cpu")  # of this process only: the devices are left to those that train
    return load_study(options.study, options.sets or []).name
