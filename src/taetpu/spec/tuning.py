"""`tune`: values that every arm tries on seeds of their own, so that none is judged at another's best setting."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY
from taetpu.core.loading import load_config, normalize_value
from taetpu.spec.candidates import cell_name, check_paths, check_values
from taetpu.spec.overrides import apply_overrides, format_value
from taetpu.spec.schema import MAX_SEED, MAX_SEEDS, RunConfig, StudySpec, repeated

FIRST_SEED = 1_000_000  # of those that tuning takes unless it is told; the study's own stay clear of them
SEEDS = 2  # that tuning takes unless it is told
MAX_CELLS = 64


@dataclass(frozen=True)
class Tuning:
    """What every arm tries.

    Attributes:
        values: by path, in the order of the file; all combinations are tried.
        seeds: of the runs that decide; none of the study's own.
        metric: that decides: the study's primary metric on the validation split, wherever that is measured. What is
            selected on the test split would be reported on it, too.
    """

    values: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    metric: str

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The combinations, by a name such as `lr=0.003`."""
        chosen = [dict(zip(self.values, cell, strict=True)) for cell in product(*self.values.values())]
        return {cell_name(cell): cell for cell in chosen if cell}

    def left_by(self, overrides: Iterable[str]) -> "Tuning":
        """What is left to try for an arm with these overrides: what it sets itself it keeps, since it is about that."""
        given = [f"{path}." for path in overrides]
        left = {path: v for path, v in self.values.items() if not any(g.startswith(f"{path}.") for g in given)}
        return replace(self, values=left)

    def edges(self, cell: Mapping[str, Any]) -> list[str]:
        """The paths at which a cell has the smallest or the largest number that was tried."""
        numbers = {p: v for p, v in self.values.items() if p in cell and all(type(x) in (int, float) for x in v)}
        return [path for path, values in numbers.items() if cell[path] in (min(values), max(values))]


def tuning(spec: StudySpec, base: Mapping[str, Any]) -> Tuning | None:
    """What a study's arms try first; None where it says nothing.

    Raises:
        UserError: what is tried is no list of values, matches nothing, is too much, or is what the ladder says; its
            seeds are also the study's.
    """
    values = {path: value for path, value in spec.tune.items() if path != "seeds"}
    if not spec.tune:
        return None
    if not values:
        raise UserError("nothing is tuned", path=("tune",), remedy="e.g. train.optimizer.lr: [1e-3, 3e-3, 1e-2]")
    check_paths(values, ("tune",))
    combinations = math.prod(len(tried) for tried in values.values() if isinstance(tried, list))
    if combinations > MAX_CELLS:
        problem = f"{combinations} combinations are too many for every arm to try"
        raise UserError(problem, path=("tune",), remedy=f"at most {MAX_CELLS}")
    for path, tried in values.items():
        _check_tried(path, tried, spec, base)
    found = Tuning({path: tuple(tried) for path, tried in values.items()}, _seeds(spec), _metric(spec))
    if len(found.cells) < combinations:
        raise UserError("two values are written alike", path=("tune",), remedy="remove one")
    return found


def _check_tried(path: str, tried: Any, spec: StudySpec, base: Mapping[str, Any]) -> None:
    place = ("tune", path)
    section, _, rest = path.partition(".")
    if section == "train" and (says := FIELDS_OUTSIDE_IDENTITY.get(rest.split(".")[0])):
        problem = f"{path} says {says}, and changes nothing that is trained"
        raise UserError(problem, path=place, remedy="set it in base")
    if rung := next((other for other in spec.ladder if f"{other}.".startswith(f"{path}.")), None):
        problem = f"{path} is tuned, and the ladder says what {rung} is"
        raise UserError(problem, path=place, remedy="keep one of them")
    if not isinstance(tried, list) or len(tried) < 2:
        remedy = "at least two, e.g. [1e-3, 3e-3, 1e-2]"
        raise UserError(f"{format_value(tried)} is not a list of values to try", path=place, remedy=remedy)
    check_values(tried, place)
    for i, value in enumerate(tried):
        try:
            load_config(RunConfig, apply_overrides(base, {path: value}))
        except UserError as error:
            raise UserError(error.problem, path=(*place, i), remedy=error.remedy) from None


def _metric(spec: StudySpec) -> str:
    return f"val/{spec.measure.primary.rpartition('/')[2]}"


def _seeds(spec: StudySpec) -> tuple[int, ...]:
    asked, path = normalize_value(spec.tune.get("seeds", SEEDS), integers=True), ("tune", "seeds")
    if type(asked) is int and 0 < asked <= MAX_SEEDS:
        asked = tuple(range(FIRST_SEED, FIRST_SEED + asked))
    if isinstance(asked, tuple) and len(asked) > MAX_SEEDS:
        raise UserError(f"{len(asked)} seeds are too many", path=path, remedy=f"at most {MAX_SEEDS}")
    if not isinstance(asked, tuple) or not asked or any(type(s) is not int or not 0 <= s <= MAX_SEED for s in asked):
        problem = f"{format_value(asked)} is neither a positive number of seeds nor a list of them"
        raise UserError(problem, path=path, remedy="e.g. 2, or [100, 101]")
    if (i := repeated(asked)) is not None:
        raise UserError(f"seed {asked[i]} is listed twice", path=(*path, i), remedy="seeds must differ")
    if shared := sorted(set(asked) & set(spec.seed_list())):
        problem = f"arms are also compared on seed {shared[0]}, which would favour what was tuned on it"
        raise UserError(problem, path=path, remedy="other seeds, or leave them out")
    return asked
