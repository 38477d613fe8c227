"""`taetpu plan` and `run` for studies whose runs are the user's command. JAX is not imported."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from taetpu.cli.output import log, plural, print_json, print_table, print_text
from taetpu.cli.report_commands import print_next, print_results
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from taetpu.cli.options import StudyOptions
    from taetpu.cli.plan import PlanOptions
    from taetpu.cli.run import RunOptions

MODEL_RUN_OPTIONS = {
    "pack": "runs of a program are not packed",
    "profile": "taetpu traces the steps of models only",
    "xla_flags": "the program starts its own XLA, if any",
    "libtpu_args": "the program starts its own XLA, if any",
    "dump": "the program starts its own XLA, if any",
    "coordinator": "the program decides how its processes connect",
    "processes": "the program decides how its processes connect",
    "process": "the program decides how its processes connect",
    "samples": "the program's models are not opened",
    "reuse": "equal settings may give other results on another machine",
    "audit": "equal settings may give other results on another machine",
}
"""Options of `taetpu run` that a study of a program cannot have, with the reason."""
MODEL_PLAN_OPTIONS = {
    "pack": "runs of a program are not packed",
    "diff": "the program's models are not opened; --json shows the words that each arm adds",
    "tpu": "taetpu compiles models that it builds",
    "coordinates": "taetpu trains models that it builds",
    "xla_flags": "the program starts its own XLA, if any",
    "libtpu_args": "the program starts its own XLA, if any",
}
"""Options of `taetpu plan` that a study of a program cannot have, with the reason."""


def has_program(file: "Path") -> bool:
    """Return whether the runs of a study file are the user's command. Raises `UserError` if it cannot be read."""
    from taetpu.spec.programs.loading import is_program_study

    return is_program_study(file)


def refuse_options(options: "StudyOptions", reasons: dict[str, str]) -> None:
    """Raise `UserError` if an option is given that only studies of models have."""
    for name, reason in reasons.items():
        if getattr(options, name) != type(options).__dataclass_fields__[name].default:
            flag = f"--{name.replace('_', '-')}"
            problem = f"{flag} is for studies of models, and this study has a program: {reason}"
            raise UserError(problem, path=(flag,), remedy=f"Remove {flag}.")


def check_options(options: "RunOptions") -> None:
    """Raise `UserError` if an option of `taetpu run` is given that only studies of models have."""
    if options.on == "tpu":
        problem = "the program and its environment are on this machine, and not on a new TPU"
        raise UserError(problem, path=("--on",), remedy="Run the command on a machine that has them.")
    if options.on == "ray" and options.check:
        problem = "--check runs the baseline on this machine, and --on ray on a node"
        raise UserError(problem, path=("--check",), remedy="Remove --check or --on ray.")
    refuse_options(options, MODEL_RUN_OPTIONS)


def refuse_check(options: "RunOptions") -> None:
    """Raise `UserError` if `--check` is given for a study of models."""
    if options.check:
        problem = "--check is for studies with a program, and this study trains models"
        raise UserError(problem, path=("--check",), remedy="Use `taetpu plan`, which checks models.")


def run_program(options: "RunOptions") -> None:
    """Run a study of a program, print a line for each run, and then the verdicts.

    Raises:
        Failed: If a program failed.
    """
    from taetpu.study.programs.events import EventLog
    from taetpu.study.programs.running import ProgramOptions, run_program_file
    from taetpu.study.shares import SharesLeft, parse_shard

    check_options(options)
    if options.check:
        _check_program(options)
        return
    given = options.study_arguments()
    given["shard"] = None if options.shard is None else parse_shard(options.shard)
    chosen = ProgramOptions(**{field.name: given[field.name] for field in fields(ProgramOptions)})
    try:
        outcome = run_program_file(
            options.study, options.sets or [], root=options.root, options=chosen, events=EventLog(log)
        )
    except SharesLeft as left:
        log(str(left))
        raise typer.Exit(left.exit_code) from None
    if options.as_json:
        print_json(outcome.results)
    else:
        print_results(outcome.results, outcome.report)
        print_next(outcome.results, "", options.root, None)
    if outcome.failed:
        count = plural(sum(len(failure.runs) for failure in outcome.failed), "run")
        raise Failed(f"{count} failed (see above); repeat the command to start their programs again")


def _check_program(options: "RunOptions") -> None:
    """Run the baseline's program for seconds and print what was read. Raises `Failed` if something is wrong."""
    from dataclasses import asdict

    from taetpu.spec.programs.loading import load_program_study
    from taetpu.study.programs.preview import format_command
    from taetpu.study.programs.trial import CHECK_SECONDS, try_baseline

    study = load_program_study(options.study, options.sets or [])
    log(f"running the baseline for at most {CHECK_SECONDS:g} s")
    trial = try_baseline(study)
    if options.as_json:
        print_json(asdict(trial))
    else:
        print_text(f"program: {format_command(list(trial.words))}", hanging=2)
        if trial.program != trial.words[0]:
            print_text(f"{trial.words[0]}: {trial.program}", hanging=2)
        typer.echo(f"ended: {trial.how}\n")
        rows = [{"metric": name, "values": trial.reported.get(name, 0), "last": f"{value:.6g}"}
                for name, value in sorted(trial.last.items())]  # fmt: skip
        if rows:
            print_table(rows)
        if trial.files:
            print_text(f"files in its folder: {', '.join(trial.files)}", hanging=2)
        if trial.lines:
            typer.echo("last lines of its output:")
        for line in trial.lines:
            typer.echo(f"  | {line}")
    if trial.problem:
        raise Failed(trial.problem)


def plan_program(options: "PlanOptions") -> None:
    """Print the arms of a study of a program, the command of the baseline, and the runs that are left."""
    from taetpu.spec.programs.loading import load_program_study
    from taetpu.study.programs.preview import preview_program
    from taetpu.study.programs.running import open_folder

    refuse_options(options, MODEL_PLAN_OPTIONS)
    study = load_program_study(options.study, options.sets or [])
    planned = preview_program(study, open_folder(study, options.root), options.noise, options.effect)
    print_json(planned) if options.as_json else _print_plan(planned)


def _print_plan(planned: dict[str, Any]) -> None:
    from taetpu.cli.plan_resolution import describe_resolution
    from taetpu.study.programs.preview import format_command

    arms, seeds = plural(len(planned["arms"]), "arm"), plural(len(planned["seeds"]), "seed")
    better = {"min": "lower", "max": "higher"}[planned["better"]]
    typer.echo(f"{planned['study']}: {arms} x {seeds}, {planned['primary']} ({better} is better)")
    print_text(f"program: {format_command(planned['command'])}", hanging=2)
    print_text(f"in {planned['cwd']}, with {plural(planned['inputs'], 'input')}; shown with seed {planned['seed']}",
               first=2, hanging=2)  # fmt: skip
    for name, value in planned["environment"].items():
        print_text(f"  {name}={value}", hanging=4)
    if planned["config"] is not None:
        typer.echo("  config file:")
        typer.echo("".join(f"    {line}\n" for line in planned["config"].splitlines()), nl=False)
    typer.echo("")
    print_table(
        {"arm": arm["name"], "changes": arm["change"], "done": f"{arm['done']}/{arm['runs']}"}
        for arm in planned["arms"]
    )
    typer.echo("")
    for name, compared in planned["contrasts"].items():
        print_text(f"contrast {name}: {compared}")
    if planned["goal"]:
        print_text(f"goal: {planned['goal']}")
    if resolved := describe_resolution(planned["resolution"]):
        print_text(resolved)
    if not planned["left"]:
        typer.echo("nothing is left to run")
        return
    where = f"not here: {planned['lacks']}" if planned["lacks"] else f"{planned['at_once']} at once"
    print_text(f"to run: {plural(planned['left'], 'run')}, {where}", hanging=2)
