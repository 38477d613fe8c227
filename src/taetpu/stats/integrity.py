"""Checks of stored runs before their numbers are used.

The checks find damaged files and records that contradict the run's folder or the study. A run's identity is recomputed
from its record, and an arm's overrides are compared with the run's config. Values that the program derives from other
values (a hidden size, one layer of a pattern) are checked only through the identity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.identity import ID_LENGTH, canonical_json, computation_fields, recorded_identity, without_defaults
from taetpu.core.short_paths import value_at
from taetpu.stats.arm_changes import baseline_settings
from taetpu.stats.load import read_config
from taetpu.store.digests import Damaged
from taetpu.store.documents import RETRAIN
from taetpu.store.flat_config import SETTINGS
from taetpu.store.frozen_study import FrozenStudy
from taetpu.store.runs import RunFolder

BASELINE = "baseline"
NOT_COMPARED = ("layers", "num_layers")  # model fields that resolved configs replace with a list of all layers
MISSING = object()
MAX_LISTED = 5  # maximum number of problems in one error message


def find_damage(runs: Sequence[RunFolder], contents: bool = True) -> list[tuple[RunFolder, list[str]]]:
    """Return the damaged runs with their problems.

    Args:
        runs: runs with status `done`.
        contents: whether to read every file; see `RunFolder.find_damage`.
    """
    checked = [(run, run.find_damage(contents) or _record_problems(run)) for run in runs]
    return [(run, problems) for run, problems in checked if problems]


def raise_if_damaged(damaged: Sequence[tuple[RunFolder, Sequence[str]]]) -> None:
    """Raise `Damaged`, a `UserError` that lists the problems, if any run is damaged."""
    if not damaged:
        return
    lines = [problem for _, problems in damaged for problem in problems]
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    count = "1 completed run is" if len(damaged) == 1 else f"{len(damaged)} completed runs are"
    raise Damaged(
        "\n  ".join([f"{count} damaged:", *lines[:MAX_LISTED], *more]), file=damaged[0][0].where, remedy=RETRAIN
    )


def _record_problems(run: RunFolder) -> list[str]:
    try:
        return [f"{run.where}: {problem}" for problem in check_record(run)]
    except UserError as error:
        return [f"{error.file or run.where}: {error.problem}"]


def check_records(study: FrozenStudy, runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield contradictions between the records of runs, their folders and the frozen study.

    Args:
        study: the frozen study.
        runs: the study's runs.

    Raises:
        UserError: If the `config.json` of a run is damaged.
    """
    about = {run: read_config(run) for run in runs}
    problems = {run: list(_check_own_record(run, recorded, study)) for run, recorded in about.items()}
    configs = {run: computation_fields(about[run]["config"]) for run in runs if not problems[run]}
    # Defaults are removed because the runs of an arm may be recorded by versions whose configs have different fields.
    trimmed = {run: without_defaults(config, about[run].get("defaults", {})) for run, config in configs.items()}
    if "judged" in study:  # its columns are no config that arms could override
        configs = {}
    if "program" in study:
        problems = {run: [*faults, *_check_settings(run, about[run], study)] for run, faults in problems.items()}
        configs = {}
    usual = _most_common_configs(trimmed)
    written = {**study["arms"], **_tuning_overrides(study)}
    for run, config in configs.items():
        problems[run] += _check_arm(run.arm, config, written, study)
        if run.arm in written and run.arm != BASELINE:
            problems[run] += _check_unchanged_sections(run.arm, trimmed[run], written[run.arm], usual.get(BASELINE, {}))
        if not problems[run] and trimmed[run] != usual[run.arm]:
            problems[run].append(f"this run's config differs from that of the other runs of arm {run.arm!r}")
    yield from (f"{run.where}: {problem}" for run, faults in problems.items() for problem in faults)


def check_record(run: RunFolder) -> Iterator[str]:
    """Yield contradictions between a run's record and its folder (arm, seed, id) or identity (config, data, plug-ins).

    Fields that earlier versions did not record may be missing.

    Raises:
        UserError: If the run's `config.json` is damaged.
    """
    known = {"arm": run.arm, "seed": run.seed, "id": run.id, **read_config(run)}
    yield from wrong if (wrong := list(_check_folder(run, known))) else _check_identity(run, known)


def _most_common_configs(configs: Mapping[RunFolder, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the most common config of each arm."""
    by_arm: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for run, config in configs.items():
        by_arm.setdefault(run.arm, {}).setdefault(canonical_json(config), []).append(config)
    return {arm: max(alike.values(), key=len)[0] for arm, alike in by_arm.items()}


def _check_own_record(run: RunFolder, recorded: Mapping[str, Any], study: FrozenStudy) -> Iterator[str]:
    """Yield contradictions between a run's folder, record and identity."""
    wrong = list(_check_folder(run, recorded))
    if wrong:
        yield from wrong
        return
    config = recorded.get("config")
    if not config or not all(isinstance(section, dict) for section in config.values()):
        yield "config.json has no config"
        return
    data, task, base = recorded.get("data"), config.get("task", {}), study["base"].get("task", {})
    same_task = computation_fields({"task": task}) == computation_fields({"task": base})
    if data is None and same_task:  # recorded by an earlier version
        data = study.get("data")
    elif task == base and data != study.get("data", data):
        yield "this run's data differs from the study's"
    if data is None:
        yield "config.json does not record the data of the run"
    else:
        yield from _check_identity(run, {**recorded, "data": data})


def _check_folder(run: RunFolder, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first contradiction between a run's record and the arm, seed and ID in its folder's path."""
    for part, expected in (("arm", run.arm), ("seed", run.seed)):
        if recorded.get(part) != expected:
            yield f"config.json records {part} {recorded.get(part)!r}, but the folder is that of {expected!r}"
            return
    given = str(recorded.get("id"))
    if not given.startswith(run.id):
        yield f"config.json records the ID {given[:8]!r}, but the folder is named {run.id!r}"


def _check_identity(run: RunFolder, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem if the recorded identity differs from the identity of the recorded config, data and plug-ins.

    Records without a config, without data or with a shortened identity are not checked. Earlier versions wrote such
    records.
    """
    data, given = recorded.get("data"), str(recorded["id"])
    if not recorded.get("config") or data is None or len(given) != ID_LENGTH:
        return
    if recorded_identity({"seed": run.seed, **recorded}, data) != given:
        yield f"the config, seed or data was changed after the run started, and no longer matches the identity {run.id}"


def _tuning_overrides(study: FrozenStudy) -> dict[str, Mapping[str, Any]]:
    """Return the overrides of the arms of all tuning trials."""
    entries = (study.get("tuning") or {"arms": {}})["arms"]
    return {
        trial["arm"]: {**study["arms"].get(name, {}), **trial["values"]}
        for name, entry in entries.items()
        for trial in entry["trials"].values()
    }


def _check_arm(
    arm: str,
    config: Mapping[str, Any],
    written: Mapping[str, Mapping[str, Any]],
    study: FrozenStudy,
) -> Iterator[str]:
    """Yield contradictions between a run's config and the overrides of its arm."""
    if arm not in written:
        return
    overrides = written[arm]
    single = any(path.startswith("model.layers.") for path in overrides)
    layered = single or bool(study["base"].get("model", {}).get("layers"))
    for path, value in (_baseline_overrides(study["base"]) if arm == BASELINE else overrides).items():
        values = _values_at(config, path, layered)
        if values and not any(_could_resolve_to(resolved, value) for resolved in values):
            yield f"{path} is {_shortened(values[-1], value)!r}, but arm {arm!r} has {value!r} in study.yaml"


def _check_settings(run: RunFolder, recorded: Mapping[str, Any], study: FrozenStudy) -> Iterator[str]:
    """Yield the settings of a program's run that are not those of its arm."""
    written = {**study["arms"], **_tuning_overrides(study)}
    if run.arm not in written:
        return
    asked = {**baseline_settings(study), **written[run.arm]}
    settings = recorded.get("config", {}).get(SETTINGS, {})
    for path in dict.fromkeys((*asked, *settings)):
        if repr(asked.get(path)) != repr(settings.get(path)):
            yield f"{path} is {settings.get(path)!r}, but arm {run.arm!r} has {asked.get(path)!r} in study.yaml"


def _check_unchanged_sections(
    arm: str, config: Mapping[str, Any], overrides: Mapping[str, Any], baseline: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a problem for each section that differs from the baseline's section although the arm does not change it."""
    changed = {path.partition(".")[0] for path in overrides}
    for section, fields in baseline.items():
        if section not in changed and config.get(section) != fields:
            yield f"section {section} differs from the baseline's, but arm {arm!r} does not change this section"


def _baseline_overrides(base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's settings whose paths are the same in the resolved config."""
    sections = computation_fields({name: fields for name, fields in base.items() if isinstance(fields, Mapping)})
    model = sections.pop("model", {})
    if model.get("layers"):  # fields of the resolved layers may differ
        model = {name: value for name, value in model.items() if not isinstance(value, Mapping)}
    overrides = {f"{name}.{field}": value for name, fields in sections.items() for field, value in fields.items()}
    return overrides | {f"model.{field}": value for field, value in model.items() if field not in NOT_COMPARED}


def _values_at(config: Mapping[str, Any], path: str, layered: bool) -> list[Any]:
    """Return the values at a path, one per layer for settings of layers.

    The list is empty if the values cannot be determined.

    Args:
        config: a resolved config.
        path: the path of an override.
        layered: whether the baseline or the arm overrides single layers. If so, settings of layers have no known value.
    """
    section, *rest = path.split(".")
    layers = config.get("model", {}).get("layers", [])
    if section != "model":
        values = [value_at(config, path, MISSING)]
    elif rest == ["num_layers"]:
        values = [len(layers)]
    elif rest[:1] == ["layers"]:
        values = [value_at(layer, rest[2:], MISSING) for layer in layers] if len(rest) > 2 else []
    elif layered and layers and rest[:1] and rest[0] in layers[0]:
        values = []
    else:
        values = [value_at(part, rest, MISSING) for part in (config["model"], *layers)]
    return [value for value in values if value is not MISSING]


def _could_resolve_to(resolved: Any, written: Any) -> bool:
    """Return whether the value written in the study may resolve to the value found in a resolved config.

    Numbers and strings must be equal; components must have the same kind. The fields of a component are compared in the
    same way.
    """
    if isinstance(resolved, Mapping):
        if isinstance(written, str):
            return resolved.get("kind", written) == written
        if isinstance(written, Mapping):
            return all(_could_resolve_to(resolved[name], value) for name, value in written.items() if name in resolved)
        return True
    if isinstance(written, str):
        return not isinstance(resolved, str) or resolved == written
    if isinstance(written, int | float) and isinstance(resolved, int | float):
        return resolved == written
    return True


def _shortened(resolved: Any, written: Any) -> Any:
    """Return the kind of a component if the study specifies only its kind, and the resolved value otherwise."""
    return resolved.get("kind", resolved) if isinstance(resolved, Mapping) and isinstance(written, str) else resolved
