"""`taetpu.ablate`: a study whose runs call a function of the user, each in a process of its own."""

import os
import pickle
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import Direction
from taetpu.core.tempdir import process_folder
from taetpu.programs.function_source import function_digest
from taetpu.programs.function_worker import FUNCTION, REPORTS
from taetpu.spec.programs.loading import load_program_study
from taetpu.study.outcome import Outcome
from taetpu.study.programs.events import EventLog
from taetpu.study.programs.running import open_folder, run_program_study

Train = Callable[[dict[str, Any], int], Any]
"""A function of the settings and the seed that returns metrics by name, or yields them while it trains."""
WORKER = ["-P", "-m", "taetpu.programs.function_worker", "{config}", "{seed}", "{folder}"]


def ablate(
    train: Train,
    *,
    base: Mapping[str, Any],
    better: Direction,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    metric: str = "loss",
    seeds: int | Sequence[int] = 5,
    study: str | None = None,
    root: str | None = None,
    inputs: Sequence[str] = (),
    each: Mapping[str, Any] | None = None,
    time_limit: str | None = None,
    log: Callable[[str], None] = print,
    **keys: Any,
) -> Outcome:
    """Run a function with changed settings and several seeds, and compare the results.

    Each call runs in a new process with the working folder and modules of this one. Calling `ablate` again continues an
    interrupted study. A run's identity contains the settings, the seed, and the source of the function and of what it
    uses in its module or notebook, so an edited function starts a new study. List files of other modules in `inputs`.

    Args:
        train: Called as `train(config, seed)`. It returns a dict of numbers, of which those that are not `metric` are
            reported beside it, or yields such dicts while it trains; `step` is the step of the others.
        base: The settings of the baseline. Names with dots are nested: `train` gets mappings of mappings.
        better: `min` if lower values of the metric are better, `max` if higher values are.
        arms: The changed settings of each arm.
        metric: The name of the metric by which arms are compared.
        seeds: The number of seeds, or the seeds.
        study: The name of the study; by default that of the function.
        root: The folder of studies; by default `TAETPU_ROOT`, or `runs`.
        inputs: Files whose content is part of a run's identity, relative to the working folder.
        each: What each run needs, e.g. `{"gpus": 1}` or `{"cpus": 2}`. As many as fit run at once; by default, one.
        time_limit: The longest time of a run, e.g. `2h`.
        log: Called with a line for each event.
        keys: Further keys of a study file, e.g. `grid`.

    Returns:
        The results and the report; a notebook shows them.

    Raises:
        UserError: If the settings, arms or keys are invalid, or the function cannot be sent to another process.
    """
    name = study or _name(train)
    pickled = _pickle(train)
    file = process_folder() / f"function-{secrets.token_hex(8)}.pickle"
    program = {
        "command": [_interpreter(), *WORKER],
        "cwd": str(Path.cwd()),
        "config": {"path": "{folder}/settings.json"},
        "metrics": {"jsonl": REPORTS},
        "environment": {FUNCTION: _escape(str(file)), **_import_paths()},
        "inputs": list(inputs),
        **({"each": dict(each)} if each else {}),
        **({"time_limit": time_limit} if time_limit else {}),
    }
    measure = {"primary": metric, "better": better, **keys.pop("measure", {})}
    data = {"study": name, "program": program, "base": dict(base), "seeds": seeds, "measure": measure, **keys}
    data |= {"arms": {arm: dict(changes) for arm, changes in arms.items()}} if arms else {}
    loaded = load_program_study(data, digests={f"function {name}": function_digest(train)})
    file.write_bytes(pickled)
    try:
        return run_program_study(loaded, open_folder(loaded, root), events=EventLog(log))
    finally:
        file.unlink(missing_ok=True)


def _name(train: Train) -> str:
    name = getattr(train.func if isinstance(train, partial) else train, "__name__", "<")
    if "<" in name:
        raise UserError("a function without a name", path=("study",), remedy='Pass study="...", the name of the study.')
    return name


def _pickle(train: Train) -> bytes:
    """Return the function as bytes, with what it uses of a notebook or script.

    Raises:
        UserError: If that is not possible.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError:
        if getattr(train, "__module__", "__main__") == "__main__":
            problem = "cloudpickle is not installed, which sends functions of notebooks and scripts to other processes"
            remedy = "Run `pip install 'taetpu[functions]'`, or import the function from a module."
            raise UserError(problem, path=("train",), remedy=remedy) from None
        cloudpickle = pickle
    try:
        return cloudpickle.dumps(train)
    except Exception as error:  # of any type, raised by what the function uses
        problem = f"the function cannot be sent to another process: {error}"
        remedy = "Create open files, locks and devices within the function."
        raise UserError(problem, path=("train",), remedy=remedy) from None


def _interpreter() -> str:
    """Return the interpreter's name, which is part of a run's identity, unlike its folder."""
    return "python" if Path(sys.executable).with_name("python").exists() else Path(sys.executable).name


def _import_paths() -> dict[str, str]:
    """Return the variables with which a process finds this interpreter and the modules that this process can import."""
    modules = [path or os.getcwd() for path in sys.path]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {"PYTHONPATH": _escape(os.pathsep.join(modules)), "PATH": _escape(os.pathsep.join(programs))}


def _escape(text: str) -> str:
    """Return a text in which braces stand for themselves."""
    return text.replace("{", "{{").replace("}", "}}")
