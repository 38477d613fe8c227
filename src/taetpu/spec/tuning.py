"""`tune`: values tried for every arm, on seeds that no verdict uses. Arms are then compared at their best values."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.document import format_value
from taetpu.spec.study_file import StudyFile, parse_seeds
from taetpu.spec.unresolved_arms import cell_name, check_lists, check_trained

FIRST_SEED = 1_000_000  # the first default tuning seed, far above the usual seeds of a study
SEEDS = 2  # the default number of tuning seeds
MAX_CELLS = 64


@dataclass(frozen=True)
class Tuning:
    """The tuning of a study.

    Attributes:
        values: The values to try, by path, in the order of the file. All combinations are tried.
        seeds: The seeds of the tuning runs. The study's own seeds are excluded.
        metric: The metric by which a combination is selected: the study's primary metric on the validation split.
            Selection on the test split would bias the results reported on it.
    """

    values: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    metric: str

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The combinations of values by name, such as `lr=0.003`."""
        chosen = [dict(zip(self.values, cell, strict=True)) for cell in product(*self.values.values())]
        return {cell_name(cell): cell for cell in chosen if cell}

    def left_by(self, overrides: Iterable[str]) -> "Tuning":
        """Return the tuning without the paths that an arm overrides in whole or in part."""
        given = [f"{path}." for path in overrides]
        left = {path: v for path, v in self.values.items() if not any(g.startswith(f"{path}.") for g in given)}
        return replace(self, values=left)

    def edges(self, cell: Mapping[str, Any]) -> list[str]:
        """Return the paths at which a combination has the smallest or the largest of the numbers that are tried."""
        numbers = {p: v for p, v in self.values.items() if p in cell and all(type(x) in (int, float) for x in v)}
        return [path for path, values in numbers.items() if cell[path] in (min(values), max(values))]


def tuning(spec: StudyFile, base: Mapping[str, Any]) -> Tuning | None:
    """Return the tuning of a study; None if the study file has no key `tune`.

    Args:
        spec: The study file.
        base: The baseline's data.

    Raises:
        UserError: If a path has fewer than two values to try, matches nothing or is set by the ladder; if there are too
            many combinations; or if a tuning seed is also a seed of the study.
    """
    values = {path: value for path, value in spec.tune.items() if path != "seeds"}
    if not spec.tune:
        return None
    if spec.tasks:
        remedy = "Tune the arms in one study for each task."
        raise UserError("arms cannot be tuned on several tasks at once", path=("tune",), remedy=remedy)
    if not values:
        remedy = f"Add values to try, e.g. {spec.examples['tune']}."
        raise UserError("nothing is tuned", path=("tune",), remedy=remedy)
    check_lists(values, ("tune",), most=MAX_CELLS)
    for path, tried in values.items():
        _check_tried(path, tried, spec, base)
    seeds = parse_seeds(spec.tune.get("seeds", SEEDS), ("tune", "seeds"), first=FIRST_SEED)
    if shared := sorted(set(seeds) & set(spec.seed_list())):
        problem = f"seed {shared[0]} is used for tuning and for comparing arms, which would bias the comparison"
        raise UserError(problem, path=("tune", "seeds"), remedy="Use other seeds, or remove the key seeds.")
    planned = Tuning({path: tuple(tried) for path, tried in values.items()}, seeds, spec.tuning_metric)
    if len(planned.cells) < math.prod(map(len, values.values())):
        raise UserError("two values have the same name", path=("tune",), remedy="Remove one of the values.")
    return planned


def _check_tried(path: str, tried: list[Any], spec: StudyFile, base: Mapping[str, Any]) -> None:
    place = ("tune", path)
    check_trained(path, place)
    if rung := next((str(other) for other in (*spec.ladder, *spec.across) if f"{other}.".startswith(f"{path}.")), None):
        problem = f"{path} is tuned, but the ladder sets {rung}"
        raise UserError(problem, path=place, remedy="Remove the path from tune or from the ladder.")
    if len(tried) < 2:
        problem = f"{format_value(tried)} is a single value"
        raise UserError(problem, path=place, remedy="List at least two values, e.g. [1e-3, 3e-3, 1e-2].")
    spec.check_tried(base, path, tried)
