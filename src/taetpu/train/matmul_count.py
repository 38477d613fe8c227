"""The matrix products of a traced program: how many there are, and of what sizes."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

Known = Mapping[Any, Any]
"""Constants, by the variables of a jaxpr that hold them."""


class Sides(NamedTuple):
    """A product that is computed `times` times, `many` at once, of `rows` by `depth` and `depth` by `columns`."""

    times: int
    many: int
    rows: int
    columns: int
    depth: int

    @property
    def operations(self) -> int:
        """A multiplication and an addition count as two."""
        return 2 * prod(self)


def products(jaxpr: Any) -> int:
    """Operations of all matrix products in a jaxpr."""
    return sum(one.operations for one in sides(jaxpr))


def kernels(jaxpr: Any) -> dict[str, list[Sides]]:
    """The products of a jaxpr's Pallas kernels, by the kernels' names."""
    found: dict[str, list[Sides]] = {}
    for name, one in _sides(jaxpr, 1, {}, ""):
        if name:
            found.setdefault(name, []).append(one)
    return found


def sides(jaxpr: Any) -> Iterator[Sides]:
    """Every matrix product in a jaxpr, convolutions among them, and those of groups of rows (`ragged_dot`).

    A loop counts by its length where that is known, once elsewhere (`endless`); of branches the one with the most
    operations; a Pallas kernel by its grid, and splash attention without the blocks that are masked whole.
    """
    return (one for _, one in _sides(jaxpr, 1, {}, ""))


def _sides(jaxpr: Any, times: int, known: Known, kernel: str) -> Iterator[tuple[str, Sides]]:
    """Every product, with the name of the kernel that it is in."""
    jaxpr, known = _opened(jaxpr, known)
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if product := PRODUCTS.get(name):
            yield kernel, Sides(times, *product(eqn))
        elif name == "cond":
            branches = [list(_sides(branch, times, given, kernel)) for branch, given in _calls(eqn, known)]
            yield from max(branches, key=lambda found: sum(one.operations for _, one in found))
        else:
            within = (eqn.params["name"] or "unnamed") if name == "pallas_call" else kernel
            for part, given in _calls(eqn, known):
                yield from _sides(part, times * _rounds(eqn, known), given, within)


def endless(jaxpr: Any) -> int:
    """How many loops have products and a length that is not known before they run."""
    jaxpr, _ = _opened(jaxpr, {})
    loops = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    return sum(products(eqn.params["body_jaxpr"]) > 0 for eqn in loops) + sum(
        endless(part) for eqn in jaxpr.eqns if eqn.primitive.name != "pallas_call" for part in inner(eqn.params)
    )


def inner(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs that an equation calls, branches among them, without their constants."""
    return [getattr(part, "jaxpr", part) for part in _parts(params)]


def _parts(params: Mapping[str, Any]) -> list[Any]:
    """The same with their constants, where they have some."""
    found = [part for value in params.values() for part in (value if isinstance(value, tuple | list) else (value,))]
    return [part for part in found if hasattr(getattr(part, "jaxpr", part), "eqns")]


def _opened(jaxpr: Any, known: Known) -> tuple[Any, Known]:
    """A jaxpr without its constants, and what is known in it."""
    if not hasattr(jaxpr, "consts"):
        return jaxpr, known
    return jaxpr.jaxpr, {**known, **dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))}


def _calls(eqn: Any, known: Known) -> Iterator[tuple[Any, Known]]:
    """The jaxprs that an equation calls, each with those of its inputs that are known constants."""
    skip = {"cond": 1, "while": eqn.params.get("cond_nconsts", 0)}.get(eqn.primitive.name, 0)
    fixed = eqn.params.get("num_consts" if eqn.primitive.name == "scan" else "body_nconsts", len(eqn.invars))
    for part in _parts(eqn.params):
        into, given = getattr(part, "jaxpr", part).invars, eqn.invars[skip:]
        pairs = zip(into[:fixed], given[:fixed], strict=True) if len(into) == len(given) else ()
        yield part, {to: known[by] for to, by in pairs if not hasattr(by, "val") and by in known}


def _rounds(eqn: Any, known: Known) -> int:
    """How often an equation does what it calls."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name != "pallas_call":
        return 1
    grid = eqn.params["grid_mapping"]
    rounds = prod(size for size in grid.grid if isinstance(size, int))
    if (eqn.params["name"] or "").startswith(SPLASH) and grid.num_index_operands > 1:
        blocks = known.get(eqn.invars[1])  # 0 for each that is masked whole; before it, what to fetch next
        if blocks is not None:
            return rounds * int(np.count_nonzero(blocks)) // np.size(blocks)
    return rounds


SPLASH = "splash_m"  # how the names of splash attention's kernels begin


def _dot(eqn: Any) -> tuple[int, int, int, int]:
    (contract, rest), (batch, other) = eqn.params["dimension_numbers"]
    return _contraction(eqn, contract, batch, (*rest, *other))


def _ragged(eqn: Any) -> tuple[int, int, int, int]:
    """Each row, or each summand, meets one group alone."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contract, rest), (batch, other) = numbers.dot_dimension_numbers
    return _contraction(eqn, contract, batch, (*rest, *other, *numbers.rhs_group_dimensions))


def _contraction(eqn: Any, contract: Any, batch: Any, not_columns: Any) -> tuple[int, int, int, int]:
    left, right = (v.aval.shape for v in eqn.invars[:2])
    rows = prod(size for i, size in enumerate(left) if i not in (*contract, *batch))
    columns = prod(size for i, size in enumerate(right) if i not in not_columns)
    return prod(left[i] for i in batch), rows, columns, prod(left[i] for i in contract)


def _convolution(eqn: Any) -> tuple[int, int, int, int]:
    """As a product of windows with kernels; windows over a border count whole, and of one that was widened by zeros
    (the gradient of a stride) what is not zero.
    """
    numbers, (_, kernel) = eqn.params["dimension_numbers"], (v.aval.shape for v in eqn.invars[:2])
    (out,) = (v.aval.shape for v in eqn.outvars)
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    features = kernel[numbers.rhs_spec[0]]
    windows = prod(size for i, size in enumerate(out) if i != numbers.out_spec[1])
    depth = prod(size for i, size in enumerate(kernel) if i != numbers.rhs_spec[0])
    return groups, windows // prod(eqn.params["lhs_dilation"]), features // groups, depth


PRODUCTS: dict[str, Callable[[Any], tuple[int, int, int, int]]] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged,
    "conv_general_dilated": _convolution,
}
