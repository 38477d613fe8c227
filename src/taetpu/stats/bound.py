"""Is each run the one that its folder, its identity and the frozen study say it is?

The identity is computed anew from what is recorded. An arm's overrides are looked up in the config: values that the
program derives from others (a hidden size, a layer cut out of a pattern) are left to the identity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.core.identity import ID_LENGTH, canonical_json, computation_fields, recorded_identity, without_defaults
from taetpu.stats.load import read_config
from taetpu.store.runs import RunFolder

BASELINE = "baseline"
UNBOUND = ("layers", "num_layers")  # of a model: the resolved one has its layers spelled out
MISSING = object()


def unbound(study: Mapping[str, Any], runs: Sequence[RunFolder]) -> Iterator[str]:
    """What is wrong with runs' records, a sentence each.

    Raises:
        UserError: a `config.json` is damaged.
    """
    about = {run: read_config(run) for run in runs}
    problems = {run: list(_not_itself(run, recorded, study)) for run, recorded in about.items()}
    configs = {run: computation_fields(about[run]["config"]) for run in runs if not problems[run]}
    # Without defaults: runs of one arm may have been recorded by versions of which one has more fields.
    own = {run: without_defaults(config, about[run].get("defaults", {})) for run, config in configs.items()}
    usual = _usual(own)
    written = {**study["arms"], **_trials(study)}
    for run, config in configs.items():
        problems[run] += _not_its_arm(run.arm, config, written, study)
        if run.arm in written and run.arm != BASELINE:
            problems[run] += _not_its_baseline(run.arm, own[run], written[run.arm], usual.get(BASELINE, {}))
        if not problems[run] and own[run] != usual[run.arm]:
            problems[run].append(f"its config is not that of the other runs of arm {run.arm!r}")
    yield from (f"{run.where}: {problem}" for run, found in problems.items() for problem in found)


def mislabelled(run: RunFolder) -> Iterator[str]:
    """What is wrong with the record of a run by itself: it is of another arm, seed or identity than its folder, or of
    another config, data or plug-ins than its identity. What an earlier version did not record is not missed.

    Raises:
        UserError: its `config.json` is damaged.
    """
    recorded = read_config(run)
    known = {"arm": run.arm, "seed": run.seed, "id": run.id, **recorded}
    yield from wrong if (wrong := list(_not_its_folder(run, known))) else _not_its_identity(run, known)


def _usual(configs: Mapping[RunFolder, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The config that most runs of an arm have."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for run, config in configs.items():
        found.setdefault(run.arm, {}).setdefault(canonical_json(config), []).append(config)
    return {arm: max(alike.values(), key=len)[0] for arm, alike in found.items()}


def _not_itself(run: RunFolder, recorded: Mapping[str, Any], study: Mapping[str, Any]) -> Iterator[str]:
    """Its folder, its record and its identity against each other."""
    wrong = list(_not_its_folder(run, recorded))
    if wrong:
        yield from wrong
        return
    config = recorded.get("config")
    if not config or not all(isinstance(section, dict) for section in config.values()):
        yield "config.json has no config"
        return
    data, task, base = recorded.get("data"), config.get("task", {}), study["base"].get("task", {})
    if data is None and computation_fields({"task": task}) == computation_fields(
        {"task": base}
    ):  # recorded by an earlier version
        data = study.get("data")
    elif task == base and data != study.get("data", data):
        yield "it was trained on other data than the study's"
    if data is None:
        yield "config.json does not say on which data it was trained"
    else:
        yield from _not_its_identity(run, {**recorded, "data": data})


def _not_its_folder(run: RunFolder, recorded: Mapping[str, Any]) -> Iterator[str]:
    """The first thing in which a record differs from what the folder is called."""
    for part, own in (("arm", run.arm), ("seed", run.seed)):
        if recorded.get(part) != own:
            yield f"config.json is of {part} {recorded.get(part)!r}, and stands in the folder of {own!r}"
            return
    given = str(recorded.get("id"))
    if not given.startswith(run.id):
        yield f"this run is recorded as {given[:8]!r}, and its folder is called {run.id!r}"


def _not_its_identity(run: RunFolder, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Does a record of config, data and plug-ins come to its identity? One without data, or whose identity is not
    whole, is of an earlier version.
    """
    data, given = recorded.get("data"), str(recorded["id"])
    if not recorded.get("config") or data is None or len(given) != ID_LENGTH:
        return
    if recorded_identity({"seed": run.seed, **recorded}, data) != given:
        yield f"its config, seed and data are not what its identity {run.id} stands for: they were changed afterwards"


def _trials(study: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What tuning tried: the overrides of its arms."""
    entries = (study.get("tuning") or {"arms": {}})["arms"]
    return {
        trial["arm"]: {**study["arms"].get(name, {}), **trial["values"]}
        for name, entry in entries.items()
        for trial in entry["trials"].values()
    }


def _not_its_arm(
    arm: str,
    config: Mapping[str, Any],
    written: Mapping[str, Mapping[str, Any]],
    study: Mapping[str, Any],
) -> Iterator[str]:
    """The config of a run against what the study says of its arm."""
    if arm not in written:
        return
    overrides = written[arm]
    single = any(path.startswith("model.layers.") for path in overrides)
    layered = single or bool(study["base"].get("model", {}).get("layers"))
    for path, value in (_as_overrides(study["base"]) if arm == BASELINE else overrides).items():
        found = _looked_up(config, path, layered)
        if found and not any(_agrees(one, value) for one in found):
            yield f"{path} is {_brief(found[-1], value)!r}, and arm {arm!r} has {value!r} in study.yaml"


def _not_its_baseline(
    arm: str, config: Mapping[str, Any], overrides: Mapping[str, Any], baseline: Mapping[str, Any]
) -> Iterator[str]:
    """The sections of a run's config that its arm does not change, against the baseline's; defaults left out."""
    changed = {path.partition(".")[0] for path in overrides}
    for section, fields in baseline.items():
        if section not in changed and config.get(section) != fields:
            yield f"its {section} is not the baseline's, and arm {arm!r} does not change it"


def _as_overrides(base: Mapping[str, Any]) -> dict[str, Any]:
    """A baseline's data as far as its resolved config has it in the same places."""
    sections = computation_fields({name: fields for name, fields in base.items() if isinstance(fields, Mapping)})
    model = sections.pop("model", {})
    if model.get("layers"):  # layers that differ are resolved one by one
        model = {name: value for name, value in model.items() if not isinstance(value, Mapping)}
    found = {f"{name}.{field}": value for name, fields in sections.items() for field, value in fields.items()}
    return found | {f"model.{field}": value for field, value in model.items() if field not in UNBOUND}


def _looked_up(config: Mapping[str, Any], path: str, layered: bool) -> list[Any]:
    """What stands at a path, in each layer where it is of layers; nothing where that cannot be said.

    Args:
        layered: single layers are overridden too, perhaps all of them.
    """
    section, *rest = path.split(".")
    layers = config.get("model", {}).get("layers", [])
    if section != "model":
        found = [_get(config, [section, *rest])]
    elif rest == ["num_layers"]:
        found = [len(layers)]
    elif rest[:1] == ["layers"]:
        found = [_get(layer, rest[2:]) for layer in layers] if len(rest) > 2 else []
    elif layered and layers and rest[:1] and rest[0] in layers[0]:
        found = []
    else:
        found = [_get(config["model"], rest), *(_get(layer, rest) for layer in layers)]
    return [one for one in found if one is not MISSING]


def _get(data: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if not isinstance(data, Mapping) or part not in data:
            return MISSING
        data = data[part]
    return data


def _agrees(found: Any, written: Any) -> bool:
    """Could what is written have come to this? Not to another number, another kind or another name."""
    if isinstance(found, Mapping):
        if isinstance(written, str):
            return found.get("kind", written) == written
        if isinstance(written, Mapping):
            return all(_agrees(found[name], value) for name, value in written.items() if name in found)
        return True
    if isinstance(written, str):
        return not isinstance(found, str) or found == written
    if isinstance(written, int | float) and isinstance(found, int | float):
        return found == written
    return True


def _brief(found: Any, written: Any) -> Any:
    """Of what fills a slot its kind, where that is all that is written of it."""
    return found.get("kind", found) if isinstance(found, Mapping) and isinstance(written, str) else found
