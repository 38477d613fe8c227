"""What the records of all studies share: checks of their schema, added arms and seeds, and changed files."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.spec.measure import Measure

MOST_NAMED = 5
"""Maximum number of changed files that a message names."""


def measure_data(measure: Measure) -> dict[str, Any]:
    """Return a measure as plain data, without the post-hoc tables, which may be added later, and unset outcomes."""
    outcomes = {"solved": measure.solved, "reach": measure.reach, "by": measure.reach, "worth": measure.worth}
    unset = {name for name, value in outcomes.items() if value is None}
    return {name: value for name, value in to_data(measure).items() if name not in {"post_hoc", *unset}}


def check_schema(stored: Mapping[str, Any], study: LoadedStudy[Any]) -> None:
    """Raise `UserError` if the folder has run identities of another schema, or was made from a table of results."""
    if "judged" in stored:
        problem = f"study {study.name!r} in this folder has the runs of a table of results, which taetpu did not train"
        remedy = (
            "Use another study name or --root. To add runs, add them to the table, and repeat `taetpu judge` on the "
            "table."
        )
        raise study.document.locate(UserError(problem, path=("study",), remedy=remedy))
    schema = stored.get("schema")
    if schema != SCHEMA:
        later = type(schema) is int and schema > SCHEMA
        problem = (
            f"study {study.name!r} in this folder has run identities of schema {schema}, and this version of taetpu "
            f"uses schema {SCHEMA}, so runs of the two schemas cannot be mixed"
        )
        remedy = (
            f"{'Update taetpu. ' if later else ''}To train the study again, use another study name or --root. "
            "`taetpu report` opens this folder."
        )
        raise study.document.locate(UserError(problem, path=("study",), remedy=remedy))


def extend_arms(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seeds, arms, roles and design of a stored study, extended by those of the study file."""
    added = {name: overrides for name, overrides in new["arms"].items() if name not in stored["arms"]}
    return {
        "seeds": [*stored["seeds"], *(seed for seed in new["seeds"] if seed not in stored["seeds"])],
        "arms": {**stored["arms"], **added},
        "idle": {**stored.get("idle", {}), **new["idle"]},
        "roles": {**stored["roles"], **new["roles"]},
        "design": new["design"],
    }


def describe_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the files whose digests changed as text; empty if there are none, or the two have no file in common.

    Args:
        before: the stored digests by the files' names.
        now: the digests of the current files.
    """
    added = {digest: name for name, digest in now.items() if name not in before}
    renamed = {name: added[digest] for name, digest in before.items() if name not in now and digest in added}
    if not before.keys() & now.keys() and not renamed:
        return ""  # an earlier version, or other files in another folder
    said = [f"{name} is named {other} now" for name, other in renamed.items()]
    said += [f"{name} was {before[name][:8]} and is {now[name][:8]} now" for name in before
            if name in now and now[name] != before[name]]  # fmt: skip
    said += [f"{name} is missing" for name in before if name not in now and name not in renamed]
    said += [f"{name} is new" for name in now if name not in before and name not in renamed.values()]
    return ", ".join([*said[:MOST_NAMED], *([f"and {len(said) - MOST_NAMED} more"] if len(said) > MOST_NAMED else [])])
