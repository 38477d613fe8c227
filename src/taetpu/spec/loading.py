"""Loading of a study file: every arm is resolved and checked before anything is trained."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import ErrorList, KeyPath, UserError, suggest
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, canonical_json
from taetpu.core.loading import load_config
from taetpu.core.plugins import Plugin, load_plugins
from taetpu.spec.arms import candidates
from taetpu.spec.candidates import Candidate, Stage, bounded
from taetpu.spec.designs import described
from taetpu.spec.document import Document, parse_value, read_document
from taetpu.spec.origins import Origins, keep_first_per_list
from taetpu.spec.overrides import apply_overrides, apply_valid, format_value, merge_overrides
from taetpu.spec.resolved_study import Arm, Study, difference
from taetpu.spec.schema import BASELINE, ResolvedConfig, RunConfig, StudySpec, load_spec
from taetpu.spec.trackers import load_trackers
from taetpu.spec.tuning import Tuning, tuning

MAX_LAYERS = 2**14  # maximum number of layers in all arms together
UNSPLIT = "Set val or test of the task above 0."


def load_study(file: Path | str, sets: Iterable[str] = ()) -> Study:
    """Read a study file, apply `--set` changes to its baseline, and resolve all arms. No data is read.

    Args:
        file: The study file.
        sets: Changes to the baseline in the form of `--set` options, `path=value`.

    Returns:
        The resolved study.

    Raises:
        UserError: If the file is invalid. The error contains the file, line and path. Independent errors are raised
            together, in the order of the file.
    """
    document = read_document(Path(file))
    folder = document.file.resolve().parent
    mistakes = ErrorList()
    try:
        spec = _spec(document, list(sets), folder)
        plugins = _plugins(spec.plugins, folder)
        shown: dict[str, Any] = {}
        with mistakes.collect():
            shown = load_trackers(spec.trackers)
        base, baseline, first = _baseline(spec.base, list(sets), document, mistakes)
        arms = _arms(spec, base, first, document, mistakes)
        _refuse_twins(arms.values())
        design, tune = described(spec, base), tuning(spec, base)
        _check_selection(tune, arms.values())
    except UserError as error:
        raise document.locate(error) from None
    return Study(
        name=spec.study,
        file=document.file,
        folder=folder,
        plugins=plugins,
        base=base,
        baseline=baseline,
        arms=tuple(arms.values()),
        seeds=spec.seed_list(),
        measure=spec.measure,
        document=document,
        design=design,
        match=tuple(kind for kind in spec.match if kind != "steps"),
        tune=tune,
        trackers=shown,
    )


def _raise_located(mistakes: ErrorList, document: Document) -> None:
    """Raise the collected errors together, in the order of the file. Do nothing if there are no errors."""
    ErrorList(document.locate(mistake) for mistake in mistakes).raise_all()


def _spec(document: Document, sets: list[str], folder: Path) -> StudySpec:
    """Load the top level of the file. If it has an error, raise this error together with the baseline's errors."""
    mistakes = ErrorList()
    with mistakes.collect():
        return load_spec(document.data)
    base, plugins = document.data.get("base"), document.data.get("plugins", [])
    known = isinstance(plugins, list) and all(isinstance(name, str) for name in plugins)
    if isinstance(base, dict) and base and known:
        with mistakes.collect():
            _plugins(tuple(plugins), folder)
            _baseline(base, sets, document, mistakes)
    _raise_located(mistakes, document)
    raise AssertionError("there was a mistake")


def _plugins(names: tuple[str, ...], folder: Path) -> tuple[Plugin, ...]:
    for i, name in enumerate(names):
        if (folder / name).exists() and not (folder / name).is_file():
            problem = f"{name!r} is a folder, a pipe or a device"
            raise UserError(problem, path=("plugins", i), remedy="Pass a Python file.")
        if not (folder / name).is_file():
            near = get_close_matches(name, [file.name for file in folder.glob("*.py")], n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else "Run `taetpu new NAME` to write one."
            raise UserError(f"there is no plug-in {name!r}", path=("plugins", i), remedy=remedy)
    return load_plugins(folder / name for name in names)


def _resolved(data: Mapping[str, Any]) -> tuple[RunConfig, ResolvedConfig]:
    config = load_config(RunConfig, data)
    resolved = config.resolve()
    resolved.check()
    return config, resolved


def _num_layers(data: Mapping[str, Any]) -> Any:
    model = data.get("model")
    return model.get("num_layers") if isinstance(model, Mapping) else None


# --- the baseline ----------------------------------------------------------------------------------------------------


def _baseline(
    data: dict[str, Any], sets: list[str], document: Document, mistakes: ErrorList
) -> tuple[dict[str, Any], RunConfig, Arm]:
    """Resolve the baseline with `--set` options applied.

    Raises:
        UserError: If the baseline or an option is invalid, or `mistakes` is not empty. All errors are raised together.
    """
    overrides = _parse_sets(sets, mistakes)
    origins = Origins(document, BASELINE, {path: (f"--set {text}",) for path, (text, _) in overrides.items()})
    found, config, resolved = ErrorList(), None, None
    base = apply_valid(data, {path: value for path, (_, value) in overrides.items()}, found)
    with found.collect():
        config, resolved = _resolved(base)
    mistakes += [origins.explain(error, _num_layers(base)) for error in found]
    _raise_located(mistakes, document)
    assert config is not None
    assert resolved is not None
    return base, config, Arm(BASELINE, {}, resolved, {}, origins)


def _parse_sets(sets: list[str], mistakes: ErrorList) -> dict[str, tuple[str, Any]]:
    """Return the text and the value of each valid `--set` option, by path.

    The errors of invalid options are added to `mistakes`.
    """
    found: dict[str, tuple[str, Any]] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        path, place = path.strip(), (f"--set {text}",)
        with mistakes.collect():
            if not equals or not path or not value.strip():
                raise UserError(
                    f"{text!r} is not of the form path=value", path=place, remedy="Write e.g. train.steps=200."
                )
            if path in found:
                raise UserError(f"{path} is set twice", path=place, remedy="Keep one of them.")
            try:
                found[path] = text, parse_value(value)
            except UserError as error:
                raise error.within(*place) from None
    return found


# --- arms ------------------------------------------------------------------------------------------------------------


def _arms(
    spec: StudySpec, base: Mapping[str, Any], first: Arm, document: Document, mistakes: ErrorList
) -> dict[str, Arm]:
    """Return all resolved arms by name, the baseline first. Raise the errors in all arms together."""
    arms, layers = {first.name: first}, len(first.config.model.layers)
    found = candidates(spec, base, mistakes)
    _check_layers(layers * len(found), first)
    for candidate in found:
        with mistakes.collect():
            arm = _arm(candidate, base, arms, document)
            if arm is not None:
                arms[arm.name] = arm
                layers += len(arm.config.model.layers)
        _check_layers(layers, first)
    with mistakes.collect():
        _check_primary(spec.measure.primary, list(arms.values()))
    _raise_located(keep_first_per_list(mistakes), document)
    return arms


def _arm(candidate: Candidate, base: Mapping[str, Any], arms: Mapping[str, Arm], document: Document) -> Arm | None:
    """Return the resolved arm; None if the arm is the cell of a grid that equals its baseline.

    Raises:
        UserError: If the arm is invalid, or one of its overrides has no effect.
    """
    arm = _built(candidate, base, arms[BASELINE], document)
    _refuse_observation(candidate)
    if candidate.grid and arm.config == arms[candidate.role.get("against", BASELINE)].config:
        return None
    idle = _idle(candidate, base, arm.config)
    if idle is not None:
        many = len(candidate.overrides) > 1
        raise UserError(
            f"{'part of ' if many else ''}arm {candidate.name!r} changes nothing: "
            f"{idle} is already {format_value(candidate.overrides[idle])}",
            path=candidate.origins[idle],
            remedy="Remove it, or change the baseline.",
        )
    return arm


def _check_layers(layers: int, baseline: Arm) -> None:
    if layers > MAX_LAYERS:
        problem = f"the arms have more than {MAX_LAYERS} layers in total"
        raise baseline.explain(
            UserError(problem, path=("model", "num_layers"), remedy="Use fewer arms or fewer layers.")
        )


def _built(candidate: Candidate, base: Mapping[str, Any], baseline: Arm, document: Document) -> Arm:
    origins, data = Origins(document, candidate.name, candidate.origins), base
    try:
        data = apply_overrides(base, candidate.overrides)
        _, resolved = _resolved(data)
    except UserError as error:
        raise origins.explain(error, _num_layers(data)) from None
    diff = difference(baseline.config, resolved)
    idle = tuple(_idle_overrides(candidate, base, resolved)) if candidate.crossed else ()
    return Arm(
        candidate.name, candidate.overrides, resolved, diff, origins, candidate.crossed, idle, candidate.role,
        candidate.stage,
    )  # fmt: skip


def derive_arm(
    study: Study, arm: Arm, name: str, values: Mapping[str, Any], stage: Stage, role: Mapping[str, Any]
) -> Arm:
    """Return a new arm that sets additional values, as `match` or `tune` in the study file requires.

    Args:
        study: The study.
        arm: The arm from which the new arm is derived.
        name: The name of the new arm.
        values: The additional values, by path.
        stage: The stage of the new arm.
        role: The role of the new arm (see `spec.candidates.Candidate`).

    Raises:
        UserError: If the new arm is invalid. Errors in the additional values are located at `match` or `tune`.
    """
    key = "match" if stage == "matched" else "tune"
    overrides = merge_overrides(arm.overrides, values)
    origins: dict[str, KeyPath] = {path: (key, path) for path in values}
    origins |= {path: place for path, place in arm.origins.places.items() if path not in values}
    made = Candidate(bounded(name), overrides, origins, crossed=True, role=role, stage=stage)
    built = _built(made, study.base, study.arms[0], study.document)
    return replace(built, idle=tuple(path for path in arm.idle if path not in values))  # set by `values`: not idle


def _refuse_observation(candidate: Candidate) -> None:
    for path, place in candidate.origins.items():
        section, _, rest = path.partition(".")
        if section == "train" and (says := FIELDS_OUTSIDE_IDENTITY.get(rest.split(".")[0])):
            part = "part of " if len(candidate.overrides) > 1 else ""
            problem = f"{part}arm {candidate.name!r} changes nothing that is trained: {path} says {says}"
            raise UserError(problem, path=place, remedy="Set it in base.")


def _idle(candidate: Candidate, base: Mapping[str, Any], resolved: ResolvedConfig) -> str | None:
    """Return the path of an override that has no effect; None if all overrides have an effect.

    In a product of several lists, single values may equal the baseline's values. The arm is only rejected if all do.
    """
    if candidate.crossed:
        same = load_config(RunConfig, base).resolve() == resolved
        return next(iter(candidate.overrides)) if same else None
    return next(_idle_overrides(candidate, base, resolved), None)


def _idle_overrides(candidate: Candidate, base: Mapping[str, Any], resolved: ResolvedConfig) -> Iterator[str]:
    """Yield the paths of the overrides that have no effect on the resolved config."""
    for path in candidate.overrides:
        others = {other: value for other, value in candidate.overrides.items() if other != path}
        try:
            if load_config(RunConfig, apply_overrides(base, others)).resolve() == resolved:
                yield path
        except UserError:
            continue  # the other overrides are invalid without this one, so it has an effect


def _check_primary(metric: str, arms: list[Arm]) -> None:
    """Raise `UserError` unless every run measures the primary metric."""
    known = arms[0].config.metrics()
    if metric not in known:
        problem = f"the evaluations of this task do not measure {metric!r}"
        if not known:
            raise arms[0].explain(UserError(problem, path=("task", "val"), remedy=UNSPLIT))
        raise UserError(problem, path=("measure", "primary"), remedy=suggest(metric, known))
    for arm in arms[1:]:
        has = arm.config.metrics()
        if metric not in has:
            problem = f"no run of arm {arm.name!r} measures {metric!r}, which arms are compared by"
            raise arm.explain(
                UserError(problem, path=("task",), remedy=f"Use one of: {', '.join(has)}." if has else UNSPLIT)
            )


def _check_selection(tune: Tuning | None, arms: Iterable[Arm]) -> None:
    """Raise `UserError` unless every run measures the metric by which tuning selects."""
    for arm in arms if tune else ():
        if tune and tune.metric not in arm.config.metrics():
            problem = f"tuning selects by {tune.metric}, which no run of arm {arm.name!r} measures"
            remedy = "Set val of the task above 0. Selecting on the test split would bias the comparison on it."
            raise arm.explain(UserError(problem, path=("task", "val"), remedy=remedy))


def _refuse_twins(arms: Iterable[Arm]) -> None:
    seen: dict[str, str] = {}
    for arm in arms:
        key = canonical_json(to_data(arm.config))
        if key in seen:
            raise UserError(
                f"arms {seen[key]!r} and {arm.name!r} are the same",
                path=next(iter(arm.origins.places.values())),
                remedy="Remove one.",
            )
        seen[key] = arm.name
