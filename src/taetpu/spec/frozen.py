"""The data that is frozen in a study's folder, and the check of a study against it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, SCHEMA, TOKENIZER_PLACES, canonical_json
from taetpu.data.digests import digest_file
from taetpu.spec.differences import changes
from taetpu.spec.document import format_brief, format_value
from taetpu.spec.eval_sample import Sample
from taetpu.spec.frozen_record import check_schema, describe_changed_files, extend_arms, measure_data
from taetpu.spec.measure import Measure
from taetpu.spec.overrides import resolve_overrides
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.study_config import RunConfig

# The parts of a study that may not change after they are frozen, with their names in messages.
FIXED = {"base": "the baseline", "measure": "`measure`", "goal": "the goal", "data": "the task's data"}
MOST_FILES = 1000
"""Number of files beyond which a study's folder stores no digests of them."""
# The fields of the baseline that may change: the locations of the data, of its tokenizer and of the model that training
# starts from, whose contents are compared by digests, and how runs are observed and computed.
FREE = (
    "base.task.source",
    *(f"base.task.tokenizer.{field}" for fields in TOKENIZER_PLACES.values() for field in fields),
    *(f"base.train.start.{field}" for field in ("folder", "revision")),
    *(f"base.train.{field}" for field in FIELDS_OUTSIDE_IDENTITY),
)


def frozen_data(study: Study) -> dict[str, Any]:
    """Return the plain data that a study's folder stores. This prepares the baseline's task.

    The data contains the baseline's default values, so that a later version with different defaults cannot change the
    baseline silently.
    """
    return {
        "study": study.name,
        "schema": SCHEMA,
        "base": to_data(study.baseline),
        "data": study.source(study.arms[0]).fingerprint,
        **({"files": files} if (files := _digests(study)) else {}),
        "measure": measure_data(study.measure),
        "seeds": list(study.seeds),
        "arms": {arm.name: arm.overrides for arm in study.arms},
        "idle": {arm.name: list(arm.idle) for arm in study.arms if arm.idle},
        **({"resets": resets} if (resets := _resets(study)) else {}),
        "roles": {arm.name: dict(arm.role) for arm in study.arms if arm.role},
        "design": study.design,
        "evaluation": asdict(Sample.from_config(study.arms[0].config, study.source(study.arms[0]))),
        **({"starts": starts} if (starts := _starts(study)) else {}),
        **({"post_hoc": study.post_hoc} if study.post_hoc else {}),
        **({"goal": study.goal} if study.goal else {}),
        **({"items": items} if (items := {n: digest_file(f) for n, f in study.item_files().items()}) else {}),
    }


def _check_resolution(stored: Mapping[str, Any], study: Study) -> None:
    """Raise `UserError` if evaluations differ from those in which a plan measures times to a value."""
    plan, train = stored.get("plan", {}), study.arms[0].config.train
    for name in ("eval_every", "eval_windows") if "reach" in plan else ():
        if (before := plan.get(name)) != (now := getattr(train, name)):
            problem = f"{name} was {before} when this study was first run, and is {now} now, but times to "
            problem += f"{plan['reach']:g} are measured in these evaluations"
            raise _frozen_error(study, problem, f"base.train.{name}")


def _resets(study: Study) -> dict[str, dict[str, list[Any]]]:
    """Return the fields that arms change by replacing a slot, as `{arm: {path: [old, new]}}` (see `Arm.resets`)."""
    resets = {arm.name: {path: to_data([*pair]) for path, pair in arm.resets.items()} for arm in study.arms}
    return {name: fields for name, fields in resets.items() if fields}


def _digests(study: Study) -> dict[str, str]:
    """Return the digests of the files of all tasks; none if there are more than `MOST_FILES`."""
    tasks = {canonical_json(to_data(arm.config.task)): arm.config.task for arm in study.arms}
    if sum(len(task.files(study.folder)) for task in tasks.values()) > MOST_FILES:
        return {}
    return {name: digest for task in tasks.values() for name, digest in task.digests(study.folder).items()}


def changed_files(stored: Mapping[str, Any], study: Study) -> str:
    """Return the files whose digests are not those that the study's folder stores, as text; empty if there are none."""
    return describe_changed_files(stored.get("files", {}), _digests(study))


def _starts(study: Study) -> dict[str, dict[str, str]]:
    """Return the digests of the stored models that runs start from, by arm and seed."""
    arms = [arm for arm in study.arms if arm.config.train.start is not None]
    return {arm.name: {str(seed): study.start_digest(arm, seed) for seed in study.seeds} for arm in arms}


def check_frozen(stored: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Check a study against the data in its folder, and return the stored data extended by new arms, seeds and tables.

    Arms, seeds and post-hoc tables that were removed from the study file remain in the data. The settings that may
    change, such as how runs are observed, keep their first stored values.

    Args:
        stored: The data that the study's folder stores.
        study: The study.

    Raises:
        UserError: If the baseline, the measure, the data, the schema, the evaluation sample, the items of a score or
            the changes of a stored arm differ from the stored data.
    """
    check_schema(stored, study)
    new, known = frozen_data(study), _with_defaults(stored)
    for part, what in FIXED.items():
        for path, (before, after) in changes(known.get(part), new.get(part), (part,)):
            if part == "data":
                problem = f"{what} differs from study {study.name!r} in this folder"
                if changed := changed_files(stored, study):
                    problem += f": by the SHA-256 of its files, {changed}"
                remedy = "Restore the data, and the names of files: `split: document` depends on them."
                raise _frozen_error(study, problem, "base.task", remedy)
            if not any(f"{path}.".startswith(f"{free}.") for free in FREE):
                problem = (
                    f"{what} differs from study {study.name!r} in this folder: "
                    f"{path} was {format_brief(before)}, and is {format_brief(after)} now"
                )
                raise _frozen_error(study, problem, path)
    _check_resolution(stored, study)
    sample = stored.get("evaluation", new["evaluation"])  # absent from folders of earlier versions
    asked, windows = new["evaluation"]["asked"], new["evaluation"]["windows"]
    if asked != sample["asked"] and windows != sample["windows"]:
        problem = f"eval_windows was {sample['asked']} when this study was first run, and is {asked} now"
        raise _frozen_error(study, problem, "base.train.eval_windows")
    for arm in study.arms:
        before = stored["arms"].get(arm.name)
        if before is not None and not _same_arm(before, arm, study):
            was, now = format_value(before), format_value(arm.overrides)
            problem = f"arm {arm.name!r} was {was} when it was first run, and is {now} now"
            raise _frozen_error(study, problem, f"arms.{arm.name}", "Give the changed arm another name.")
    starts = _merged_starts(stored.get("starts", {}), new.get("starts", {}), study)
    items = _merged_items(stored.get("items", {}), new.get("items", {}), study)
    files, before = new.get("files", {}), stored.get("files", {})
    if sorted(files.values()) == sorted(before.values()):
        files = before  # perhaps moved
    merged = {part: {**stored.get(part, {}), **new.get(part, {})} for part in ("resets", "post_hoc")}
    optional = {"files": files, **merged, "items": items, "evaluation": sample, "starts": starts}
    return {**stored, **extend_arms(stored, new), **{name: part for name, part in optional.items() if part}}


def _merged_starts(
    stored: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]], study: Study
) -> dict[str, dict[str, str]]:
    """Return the stored digests of start models, extended by new arms and seeds.

    Raises:
        UserError: If a model differs from the model that a run was first started from.
    """
    for arm, digests in new.items():
        for seed, digest in digests.items():
            before = stored.get(arm, {}).get(seed, digest)
            if before != digest:
                problem = (
                    f"the stored model that arm {arm!r} starts from with seed {seed} has changed: its SHA-256 was "
                    f"{before[:8]} and is {digest[:8]} now"
                )
                raise _frozen_error(study, problem, f"arms.{arm}", "Restore the model, or give the arm another name.")
    return {arm: {**stored.get(arm, {}), **new.get(arm, {})} for arm in {**stored, **new}}


def _merged_items(stored: Mapping[str, str], new: Mapping[str, str], study: Study) -> dict[str, str]:
    """Return the stored digests of item files, extended by those of new scores.

    Raises:
        UserError: If a file differs from the one on which earlier runs were scored.
    """
    for name, digest in new.items():
        if (before := stored.get(name, digest)) != digest:
            problem = (
                f"the items of {name!r} have changed: the SHA-256 of {study.item_files()[name]} was {before[:8]} and "
                f"is {digest[:8]} now"
            )
            remedy = "Restore the file, or give the score on the new file another name."
            raise _frozen_error(study, problem, f"base.train.eval_metrics.{name}", remedy)
    return {**stored, **new}


def _with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored data, in which fields that did not exist when it was stored are set to their defaults."""
    filled = dict(stored)
    for part, cls in (("base", RunConfig), ("measure", Measure)):
        try:
            known = load_config(cls, stored.get(part))
            filled[part] = measure_data(known) if isinstance(known, Measure) else to_data(known)
        except UserError:
            continue  # a kind or field no longer exists, so the data is compared as it was stored
    return filled


def _frozen_error(study: Study, problem: str, path: str, remedy: str = "Restore the stored value.") -> UserError:
    first, *rest = (int(part) if part.lstrip("-").isdecimal() else part for part in path.split("."))
    remedy = f"{remedy} To start a new study, use another study name or --root."
    error = UserError(problem, path=tuple(rest), remedy=remedy)
    return study.arms[0].explain(error) if first == "base" else study.document.locate(error.within(first))


def _same_arm(overrides: Mapping[str, Any], arm: Arm, study: Study) -> bool:
    """Return whether stored overrides resolve to the arm's config, even if they are written differently."""
    if repr(overrides) == repr(arm.overrides):  # stricter than ==, for which 1, 1.0 and True are equal
        return True
    try:
        return resolve_overrides(study.base, overrides) == arm.config
    except UserError:
        return False
