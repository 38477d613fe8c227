"""The plan of a study of a program: its arms, the command of each, and the runs that are left."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.report.contrasts import describe_contrast
from taetpu.report.goal import describe_planned_goal
from taetpu.spec.programs.study import ProgramArm, ProgramStudy
from taetpu.stats.load import read_study
from taetpu.store.study import StudyFolder
from taetpu.study.programs.attempt import fill_command
from taetpu.study.programs.freezing import check_program, program_plan
from taetpu.study.programs.machine import machine_slots
from taetpu.study.resolution import resolution


def preview_program(
    study: ProgramStudy, folder: StudyFolder, noise: float | None = None, effect: float | None = None
) -> dict[str, Any]:
    """Return the plan of a study as plain data. Nothing is written and no program is started.

    Args:
        study: the study.
        folder: its folder.
        noise: see `resolution`.
        effect: see `resolution`.

    Returns:
        `study`, `seeds`, `primary`, `cwd`; `inputs`: the number of files; `command`: the baseline's words on the first
        seed; `config`: the content of its config file, or None; `environment`: its variables; `arms`: for each arm its
        `change`, the words that its command `adds` and `drops` beside the baseline's, and the number of `runs` and of
        those that are `done`; `at_once`: the number of runs that this machine runs at once, with 0 for the reason in
        `lacks`; `contrasts`; `goal`; `resolution`: see the function `resolution`.

    Raises:
        UserError: If the folder contains another study, or the noise or the effect is invalid.
    """
    done = [run for run in folder.runs() if run.status() == "done"] if folder.exists() else []
    if folder.exists():
        check_program(read_study(folder), study, done)
    words, variables, config = _filled(study, study.arms[0], folder)
    arms = [*_arms(study, folder, {(run.arm, run.seed, run.id) for run in done})]
    compared = [study.against(arm).name for arm in study.arms if study.against(arm) is not arm]
    left = sum(arm["runs"] - arm["done"] for arm in arms)
    at_once, lacks = 0, ""
    try:
        at_once = len(machine_slots(study.program.each, max(1, left)))
    except UserError as error:  # the plan may be made on another machine than that of the runs
        lacks = error.problem
    return {
        "study": study.name,
        "seeds": list(study.seeds),
        "primary": study.measure.primary,
        "better": study.measure.direction,
        "cwd": str(study.cwd),
        "inputs": len(study.inputs),
        "seed": study.seeds[0],
        "command": words,
        "environment": variables,
        "config": config,
        "arms": arms,
        "left": left,
        "at_once": at_once,
        "lacks": lacks,
        "contrasts": {name: describe_contrast(contrast) for name, contrast in study.contrasts.items()},
        "resolution": resolution(program_plan(study), compared, folder, None, noise, effect),
        "goal": describe_planned_goal(study.goal) if study.goal else None,
    }


def _arms(study: ProgramStudy, folder: StudyFolder, done: set[tuple[str, int, str]]) -> Iterator[dict[str, Any]]:
    """Yield what a plan says of each arm, from the finished runs as arm, seed and identity."""
    for arm in study.arms:
        runs = [study.run(arm, seed) for seed in study.seeds]
        ours, theirs = (_filled(study, each, folder)[0] for each in (arm, study.against(arm)))
        yield {
            "name": arm.name,
            "change": arm.change(study.base),
            "adds": [word for word in ours if word not in theirs],
            "drops": [word for word in theirs if word not in ours],
            "runs": len(runs),
            "done": sum((run.arm, run.seed, run.id[:8]) in done for run in runs),
        }


def _filled(study: ProgramStudy, arm: ProgramArm, folder: StudyFolder) -> tuple[list[str], dict[str, str], str | None]:
    """Return the words, the variables and the config file of an arm's run on the first seed."""
    run = study.run(arm, study.seeds[0])
    place = Path(folder.where).resolve() / "programs" / arm.name / f"{run.seed}-{run.id[:8]}" / "folder"
    filled = fill_command(study, run, place)
    return filled.words, filled.variables, filled.content.decode() if filled.file is not None else None


def format_command(words: list[str]) -> str:
    """Return the words of a command as they would be written in bash, on one line."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escape(word)}'" for word in words)


def _escape(word: str) -> str:
    """Return a word for the inside of `$'...'`."""
    known = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
    return "".join(known.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in word)
