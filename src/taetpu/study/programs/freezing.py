"""Recording a study of a program in its folder before the first run, and checking the study against that record."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import KeyPath, UserError
from taetpu.core.identity import SCHEMA
from taetpu.core.metric_spec import MetricSpec
from taetpu.spec.differences import changes
from taetpu.spec.document import format_brief, format_value
from taetpu.spec.frozen_record import check_schema, describe_changed_files, extend_arms, measure_data
from taetpu.spec.programs.study import ProgramStudy
from taetpu.stats.load import read_study
from taetpu.stats.plan import Plan
from taetpu.store.flat_config import SETTINGS
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.frozen_arms import common_plan, refuse_tuned_seeds, without_removed

FIXED = {"base": "the baseline", "measure": "`measure`", "goal": "the goal"}
"""Parts of a study that may not change, with their names in messages."""
FREE = ("cwd", "inputs", "time_limit", "each", "resume", "repeat", "output", "environment", "costs")
"""Keys of `program` that may change: they are recorded, and no identity depends on them."""
MOST_RUNS = 5
"""Maximum number of arms whose runs a message lists."""
NEW = "To start a new study, use another study name or --root."


def freeze_program(study: ProgramStudy, folder: StudyFolder, **more: Any) -> None:
    """Record a study. Arms and seeds may be added later, and the program may change until a run has finished.

    Args:
        study: the study.
        folder: the study's folder.
        more: further values to record, such as `tuning`.

    Raises:
        UserError: If the folder contains another study, or the program or its inputs changed after a run had finished.
    """
    done = [run for run in folder.runs() if run.status() == "done"]
    data = {**program_data(study), "plan": program_plan(study).frozen(), "judged_at": []}
    if folder.exists():
        stored = read_study(folder)
        refuse_tuned_seeds(study, stored)
        extended = check_program(stored, study, done)
        data = without_removed(extended, stored, [arm.name for arm in study.arms], study.seeds, done)
    elif done:
        data["planned_after"] = len(done)
    folder.write_study({**data, **more}, replace=True)


def program_data(study: ProgramStudy) -> dict[str, Any]:
    """Return the plain data that a study's folder stores."""
    return {
        "study": study.name,
        "schema": SCHEMA,
        "program": {**to_data(study.program), "cwd": str(study.cwd)},
        "base": {SETTINGS: study.base},
        "data": study.data,
        "files": dict(study.inputs),
        "measure": measure_data(study.measure),
        "seeds": list(study.seeds),
        "arms": {arm.name: arm.overrides for arm in study.arms},
        "idle": {arm.name: list(arm.idle) for arm in study.arms if arm.idle},
        "roles": {arm.name: dict(arm.role) for arm in study.arms if arm.role},
        "design": study.design,
        **({"goal": study.goal} if study.goal else {}),
    }


def program_plan(study: ProgramStudy) -> Plan:
    """Return the analysis plan, which is frozen before the first run."""
    measure = study.measure
    return common_plan(study, metrics={measure.primary: MetricSpec(measure.direction).to_data()})


def check_program(stored: Mapping[str, Any], study: ProgramStudy, done: Sequence[RunFolder]) -> dict[str, Any]:
    """Check a study against the data in its folder, and return the stored data extended by new arms and seeds.

    Args:
        stored: the stored data.
        study: the study.
        done: the finished runs.

    Raises:
        UserError: If the folder has a study of models or of a table; if the baseline, the measure, the goal or a stored
            arm differs; or if the program or its inputs differ and a run has finished.
    """
    check_schema(stored, study)
    if "program" not in stored:
        problem = f"study {study.name!r} in this folder trains models, and this file has a program"
        raise study.document.locate(UserError(problem, path=("program",), remedy=NEW))
    new = program_data(study)
    for part, what in FIXED.items():
        for path, (before, after) in changes(stored.get(part), new.get(part), ()):
            name = path.removeprefix(f"{SETTINGS}.")
            problem = (
                f"{what} differs from study {study.name!r} in this folder: {name} was {format_brief(before)}, and is "
                f"{format_brief(after)} now"
            )
            remedy = f"Restore the stored value. {NEW}"
            raise study.document.locate(UserError(problem, path=(part, *name.split(".")), remedy=remedy))
    for arm in study.arms:
        before = stored["arms"].get(arm.name, arm.overrides)
        if repr(before) != repr(arm.overrides):
            was, now = format_value(before), format_value(arm.overrides)
            problem = f"arm {arm.name!r} was {was} when it was first run, and is {now} now"
            remedy = f"Give the changed arm another name. {NEW}"
            raise study.explain(arm, UserError(problem, remedy=remedy))
    extended = {**stored, **extend_arms(stored, new)}
    if not done:
        return {**extended, **{name: new[name] for name in ("program", "data", "files")}}
    if stored["data"] != new["data"] or _fixed(stored["program"]) != _fixed(new["program"]):
        raise _changed(stored, new, study, done)
    return extended


def _fixed(program: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in program.items() if name not in FREE and value is not None}


def _changed(
    stored: Mapping[str, Any], new: Mapping[str, Any], study: ProgramStudy, done: Sequence[RunFolder]
) -> UserError:
    """Return the error about a program that changed after runs had finished. It names the changes and the runs."""
    path: KeyPath = ("program", "inputs")
    changed = describe_changed_files(stored["files"], new["files"])
    keys = [name for name, value in _fixed(new["program"]).items() if value != stored["program"].get(name)]
    if not changed and keys:
        path = ("program", keys[0])
        was, now = (format_value(program.get(keys[0])) for program in (stored["program"], new["program"]))
        changed = f"program.{keys[0]} was {was}, and is {now} now"
    problem = f"{changed or 'the inputs changed'}; runs that finished before: {_list_runs(done)}"
    remedy = f"Restore it, or run the changed program as another study. {NEW} The finished runs were not changed."
    return study.document.locate(UserError(problem, path=path, remedy=remedy))


def _list_runs(done: Sequence[RunFolder]) -> str:
    """Return runs by arm, such as `baseline (seeds 0, 1), wide (seed 0)`."""
    groups = [(arm, [str(run.seed) for run in runs]) for arm, runs in groupby(done, key=lambda run: run.arm)]
    listed = [f"{arm} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" for arm, seeds in groups[:MOST_RUNS]]
    return ", ".join([*listed, *([f"{len(groups) - MOST_RUNS} more arms"] if len(groups) > MOST_RUNS else [])])
