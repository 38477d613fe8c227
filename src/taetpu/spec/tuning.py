"""`tune`: values that every arm tries on seeds of their own, so that none is judged at another's best setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.candidates import cell_name, check_paths, check_values
from taetpu.spec.overrides import apply, show
from taetpu.spec.schema import MOST_SEEDS, StudySpec

FIRST_SEED = 1_000_000  # of those that tuning takes unless it is told; the study's own stay clear of them
SEEDS = 2  # that tuning takes unless it is told
MOST_CELLS = 64


@dataclass(frozen=True)
class Tuning:
    """What every arm tries.

    Attributes:
        values: by path, in the order of the file; all combinations are tried.
        seeds: of the runs that decide; none of the study's own.
    """

    values: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The combinations, by a name such as `lr=0.003`."""
        chosen = [dict(zip(self.values, cell, strict=True)) for cell in product(*self.values.values())]
        return {cell_name(cell): cell for cell in chosen}

    def edges(self, cell: Mapping[str, Any]) -> list[str]:
        """The paths at which a cell has the smallest or the largest number that was tried."""
        numeric = {p: v for p, v in self.values.items() if len(v) > 1 and all(isinstance(x, int | float) for x in v)}
        return [path for path, values in numeric.items() if cell[path] in (min(values), max(values))]


def tuning(spec: StudySpec, base: Mapping[str, Any]) -> Tuning | None:
    """What a study's arms try first; None where it says nothing.

    Raises:
        UserError: what is tried is no list of values, matches nothing or is too much; its seeds are also the study's.
    """
    values = {path: value for path, value in spec.tune.items() if path != "seeds"}
    if not spec.tune:
        return None
    if not values:
        raise UserError("nothing is tuned", path=("tune",), remedy="e.g. train.optimizer.lr: [1e-3, 3e-3, 1e-2]")
    check_paths(values, ("tune",))
    for path, tried in values.items():
        if not isinstance(tried, list) or len(tried) < 2:
            remedy = "at least two, e.g. [1e-3, 3e-3, 1e-2]"
            raise UserError(f"{show(tried)} is not a list of values to try", path=("tune", path), remedy=remedy)
        check_values(tried, ("tune", path))
        for i, value in enumerate(tried):
            try:
                apply(base, {path: value})
            except UserError as error:
                raise UserError(error.problem, path=("tune", path, i), remedy=error.remedy) from None
    found = Tuning({path: tuple(tried) for path, tried in values.items()}, _seeds(spec))
    if len(found.cells) > MOST_CELLS:
        remedy = f"at most {MOST_CELLS}"
        raise UserError(f"{len(found.cells)} combinations are too many to try", path=("tune",), remedy=remedy)
    return found


def _seeds(spec: StudySpec) -> tuple[int, ...]:
    asked, path = spec.tune.get("seeds", SEEDS), ("tune", "seeds")
    if type(asked) is int and 0 < asked <= MOST_SEEDS:
        return tuple(range(FIRST_SEED, FIRST_SEED + asked))
    if not isinstance(asked, list) or not asked or any(type(seed) is not int or seed < 0 for seed in asked):
        remedy = "e.g. 2, or [100, 101]"
        raise UserError(f"{show(asked)} is neither a number of seeds nor a list of them", path=path, remedy=remedy)
    if shared := sorted(set(asked) & set(spec.seed_list())):
        problem = f"seed {shared[0]} is also one that arms are compared on, which would favour what was tuned on it"
        raise UserError(problem, path=path, remedy="other seeds, or leave them out")
    return tuple(dict.fromkeys(asked))
