"""Load a study file whose runs are the user's command. Every arm is checked before a program is started."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, change_errors, errors_at, locate_errors, suggest
from taetpu.core.metric_spec import MetricSpec
from taetpu.programs.metric_sources import STEP, STREAMS, check_names, parse_sources
from taetpu.spec.arms import build_arms
from taetpu.spec.contrasts import plan_contrasts
from taetpu.spec.document import Document, format_value, read_document
from taetpu.spec.goal import Measured, plan_goal
from taetpu.spec.programs.command import KEY, PLACES, VALUE, Command, parse_text
from taetpu.spec.programs.config_files import check_nulls, encode, file_format, read_template
from taetpu.spec.programs.inputs import fingerprint, input_digests
from taetpu.spec.programs.program_config import ConfigFileConfig, ProgramConfig
from taetpu.spec.programs.settings import Settings, apply_settings, flatten_settings, nest_settings
from taetpu.spec.programs.study import ProgramArm, ProgramStudy
from taetpu.spec.programs.study_keys import ProgramFile
from taetpu.spec.repeats import described, nuisances
from taetpu.spec.sets import Sets, parse_sets
from taetpu.spec.study_file import BASELINE
from taetpu.spec.trackers import read_trackers
from taetpu.spec.tuning import tuning
from taetpu.spec.unresolved_arms import Candidate, Stage, bounded
from taetpu.store.frozen_study import PlannedGoal, Role

PROGRAM = "program"
SHORT = 60
"""Maximum length of a list of settings in a message."""


def is_program_study(file: Path | str | Mapping[str, Any]) -> bool:
    """Return whether the runs of a study file are the user's command.

    Raises:
        UserError: If it cannot be read, or the key `program` is misspelt.
    """
    document = read_document(file)
    if PROGRAM not in document.data and (near := get_close_matches(PROGRAM, map(str, document.data), cutoff=0.8)):
        error = UserError(f"unknown field {near[0]!r}", path=(near[0],), remedy=f"Did you mean {PROGRAM!r}?")
        raise document.locate(error)
    return PROGRAM in document.data


def load_program_study(
    file: Path | str | Mapping[str, Any], sets: Sets = (), digests: Mapping[str, str] | None = None
) -> ProgramStudy:
    """Read a study file with the key `program`, apply `--set` changes to its baseline, and check all arms.

    Args:
        file: The study file, or a dictionary with its content. The program's folder is relative to the file's folder.
        sets: Changes to the baseline (see `spec.sets`).
        digests: The SHA-256 of inputs that are no files, by name.

    Raises:
        UserError: If the file is invalid. The error contains the file, line and path.
    """
    document = read_document(file)
    with change_errors(document.locate):
        spec = load_config(ProgramFile, document.data)
        with locate_errors("base"):
            base = flatten_settings(spec.base)
        for path, (place, value) in parse_sets(sets).items():
            with errors_at(place):
                base = apply_settings(base, {path: value})
        with locate_errors("program"):
            cwd = _working_folder(spec.program, document)
            command = read_command(spec.program, base)
            inputs = input_digests(spec.program, cwd, digests or {})
            with locate_errors("metrics"):
                sources = parse_sources(spec.program.metrics)
            check_reach(spec.program, command, base, len(spec.seed_list()))
            if spec.program.config is not None:
                read_template(spec.program.config, cwd)
        _check_metric(spec, sources)
        first = ProgramArm(BASELINE, {}, base, place=("base",))
        arms = build_arms(spec, base, first, document, lambda made, others: make_arm(made, base, others))
        if spec.program.config is not None:
            for arm in arms:
                check_nulls(spec.program.config, arm.overrides or base, arm.place)
        _check_words(spec.program, command, arms)
        return ProgramStudy(
            name=spec.study,
            file=document.file,
            program=spec.program,
            cwd=cwd,
            command=command,
            base=base,
            arms=arms,
            seeds=spec.seed_list(),
            measure=spec.measure,
            document=document,
            inputs=inputs,
            data=fingerprint(spec.program, inputs),
            design=described(spec, base),
            tune=tuning(spec, base),
            trackers=read_trackers(spec.trackers),
            contrasts=plan_contrasts(spec.measure.contrasts, arms, [], base),
            goal=_goal(spec, arms),
            across=nuisances(spec, base),
        )


def _working_folder(program: ProgramConfig, document: Document) -> Path:
    """Return the program's working folder. Raises `UserError` if there is none."""
    folder = (document.folder / Path(program.cwd).expanduser()).resolve()
    if folder.is_dir():
        return folder
    near = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
    remedy = suggest(folder.name, near) if near else "Write a folder relative to the study file."
    raise UserError(f"there is no folder {program.cwd!r}", path=("cwd",), remedy=remedy)


def read_command(program: ProgramConfig, base: Settings) -> Command:
    """Return the command and environment of a program, parsed.

    Raises:
        UserError: If a name in braces is unknown, or a word cannot hold what `lists` or `booleans` ask.
    """
    places = [name for name in PLACES if name != "config" or program.config is not None]
    known = [*places, *base]
    words = [parse_text(word, [*known, KEY, VALUE], ("command", number)) for number, word in enumerate(program.command)]
    pairs = []
    for name, value in program.environment.items():
        place = ("environment", str(name))
        if "=" in str(name) or not str(name):
            problem = f"{str(name)!r} cannot be the name of a variable"
            raise UserError(problem, path=place, remedy="Use a name without '='.")
        text = str(value) if not isinstance(value, bool) else str(value).lower()
        pair = tuple(parse_text(part, [*known, KEY, VALUE], place) for part in (str(name), text))
        if pair[1].repeated and not pair[0].repeated:
            problem = f"the variable {name} would be set once for each setting"
            raise UserError(problem, path=place, remedy=f"Write {name}_{{key}}, or name a setting.")
        pairs.append(pair)
    command = Command(tuple(words), tuple(pairs), program)
    _check_forms(command)
    return command


def _check_forms(command: Command) -> None:
    """Raise `UserError` if the repeated words cannot hold booleans or lists in the form that is asked for."""
    rules, repeated = command.rules, [word for word in command.words if word.repeated]
    if not repeated:
        for name in ("booleans", "lists"):
            if getattr(rules, name) != "written":
                problem = f"{name}: {getattr(rules, name)} is a form of {{key}} and {{value}}, which no word has"
                raise UserError(problem, path=(name,), remedy='Add e.g. "--{key}={value}" to the command.')
        return
    if not any(VALUE in word.names for word in repeated):
        remedy = 'Write e.g. "--{key}={value}", or "--{key}", "{value}".'
        raise UserError("no word of the command has {value}", path=("command",), remedy=remedy)
    if rules.lists == "words" and not any(word.parts == ((True, VALUE),) for word in repeated):
        problem = "lists: words writes a word for each item, and {value} is no word of its own"
        raise UserError(problem, path=("lists",), remedy='Write "--{key}", "{value}" as two words.')
    if rules.booleans == "flag-pair" and not any(word.parts[0] == (False, "--") for word in repeated if word.parts):
        problem = "booleans: flag-pair writes --KEY and --no-KEY, and no word begins with --{key}"
        raise UserError(problem, path=("booleans",), remedy='Write e.g. "--{key}={value}".')


def check_reach(program: ProgramConfig, command: Command, base: Settings, seeds: int) -> None:
    """Raise `UserError` if a setting of the baseline, the seed, or a folder that is read, never reaches the program."""
    named = command.named
    if program.config is not None:
        file_format(program.config)
        for path, value in flatten_settings(program.config.add, ("config", "add")).items():
            if both := [name for name in base if f"{name}.".startswith(f"{path}.") or path.startswith(f"{name}.")]:
                problem = f"{path} is set for all arms, but {both[0]} is a setting of the baseline"
                raise UserError(problem, path=("config", "add", path), remedy="Remove it from add, or from base.")
            if isinstance(value, str):
                named |= parse_text(value, [*PLACES, *base], ("config", "add", path)).names
        in_path = parse_text(program.config.path, [*PLACES, *base], ("config", "path")).names
        _check_file(program.config, in_path, command.named)
        named |= in_path
    lost = [path for path in base if path not in named]
    if lost and not command.passes_all and program.config is None:
        names = ", ".join(lost)
        names = names if len(names) <= SHORT else f"{lost[0]} and {len(lost) - 1} more"
        remedy = 'Add "--{key}={value}" to the command, or program.config, or program.environment.'
        raise UserError(f"no word of the command passes {names}", path=("command",), remedy=remedy)
    if "seed" not in named and seeds > 1:
        problem = f"the seed reaches nothing, so the {seeds} runs of an arm would be the same run"
        remedy = "Add e.g. '--seed={seed}' to the command" + (
            ", or add: {seed: '{seed}'} to program.config." if program.config else "."
        )
        raise UserError(problem, path=("command",), remedy=remedy)
    read = [name for name in program.metrics if name not in (*STREAMS, "json", STEP)]
    if read and "folder" not in named:
        problem = f"the run's folder reaches nothing, so the program cannot write {program.metrics[read[0]]!r} there"
        raise UserError(problem, path=("metrics", read[0]), remedy="Add e.g. '--out={folder}' to the command.")


def _check_file(config: ConfigFileConfig, in_path: Collection[str], in_command: Collection[str]) -> None:
    """Raise `UserError` if runs would share a config file, or the program does not get it."""
    if "folder" not in in_path:
        problem = f"all runs would write {config.path}, each in place of the one before"
        raise UserError(problem, path=("config", "path"), remedy=f"Write {{folder}}/{Path(config.path).name}.")
    if not {"config", "folder"} & {*in_command}:
        problem = f"no word of the command passes the config file {config.path}"
        raise UserError(problem, path=("command",), remedy='Add "{config}" to the command.')


def _check_metric(spec: ProgramFile, sources: Any) -> None:
    with errors_at("measure", "primary"):
        check_names(sources, [spec.measure.primary])


# --- arms -------------------------------------------------------------------------------------------------------------


def _check_words(program: ProgramConfig, command: Command, arms: Sequence[ProgramArm]) -> None:
    """Raise `UserError` if the program gets the same from two arms with different settings, such as 4 and "4"."""
    places = {name: f"{{{name}}}" for name in PLACES}
    seen: dict[Any, ProgramArm] = {}
    for arm in arms:
        words, variables = command.fill_words(arm.settings, places), command.fill_environment(arm.settings, places)
        content = encode(nest_settings(arm.settings), file_format(program.config)) if program.config else b""
        other = seen.setdefault((*words, None, *sorted(variables.items()), content), arm)
        if not same(arm.settings, other.settings):
            problem = f"the program gets the same words from arm {arm.name!r} as from arm {other.name!r}"
            raise UserError(problem, path=arm.place, remedy="Remove this arm, or write another value.")


def make_arm(candidate: Candidate, base: Settings, arms: Mapping[str, ProgramArm]) -> ProgramArm | None:
    """Return an arm with its settings; None if it is a combination of `grid` that equals its baseline.

    Raises:
        UserError: If an override matches nothing or has no effect, or the arm equals another one.
    """
    overrides = {
        n: v for path, value in candidate.overrides.items() for n, v in flatten_settings({path: value}).items()
    }
    first = next(iter(candidate.origins.values()))
    try:
        settings = apply_settings(base, candidate.overrides)
    except UserError as error:
        place = candidate.origins.get(str(error.path[0]), first) if error.path else first
        raise UserError(error.problem, path=place, remedy=error.remedy) from None
    baseline = arms.get(candidate.role.get("against", BASELINE), arms[BASELINE])  # a rung's baseline is its own
    if candidate.grid and same(settings, baseline.settings):
        return None
    idle = tuple(path for path, value in overrides.items() if same(value, base[path]))
    if idle and (len(idle) == len(overrides) or not candidate.crossed):
        part = "part of " if len(idle) < len(overrides) else ""
        problem = f"{part}arm {candidate.name!r} changes nothing: {idle[0]} is already {format_value(base[idle[0]])}"
        place = next((at for path, at in candidate.origins.items() if f"{idle[0]}.".startswith(f"{path}.")), first)
        raise UserError(problem, path=place, remedy="Remove this override, or change the baseline.")
    equal = (arm for arm in arms.values() if same(arm.settings, settings))
    twin = next((arm for arm in equal if arm.role.get("against") == candidate.role.get("against")), None)
    if twin is not None and twin.name != candidate.name:
        problem = f"arm {candidate.name!r} has the same settings as arm {twin.name!r}"
        raise UserError(problem, path=first, remedy="Remove one of the arms.")
    return ProgramArm(candidate.name, overrides, settings, idle, candidate.role, candidate.stage, first)


def same(value: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same type: 1, 1.0 and True reach a program differently."""
    return repr(value) == repr(other)


def derive_arm(
    study: ProgramStudy, arm: ProgramArm, name: str, values: Mapping[str, Any], stage: Stage, role: Role
) -> ProgramArm:
    """Return an arm with further settings, as `tune` requires.

    Args:
        study: the study.
        arm: the arm from which the new arm is derived.
        name: the name of the new arm.
        values: the further settings, by path.
        stage: the stage of the new arm.
        role: the role of the new arm.
    """
    changed = flatten_settings(values)
    overrides, settings = {**arm.overrides, **changed}, {**arm.settings, **changed}
    return replace(arm, name=bounded(name), overrides=overrides, settings=settings, role=role, stage=stage)


# --- analysis ---------------------------------------------------------------------------------------------------------


def _goal(spec: ProgramFile, arms: tuple[ProgramArm, ...]) -> PlannedGoal | None:
    """Return the goal of the analysis plan. Costs are settings, or numbers that the program prints."""
    if spec.goal is None:
        return None
    metrics = {spec.measure.primary: MetricSpec(spec.measure.better)}
    with locate_errors("goal"):
        configs = [(arm.name, arm.settings) for arm in arms]
        return plan_goal(spec.goal, Measured(spec.measure.primary, metrics), configs, {}, tuple(spec.program.costs))
