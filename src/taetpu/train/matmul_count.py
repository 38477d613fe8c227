"""The matrix products in a traced program and their sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from taetpu.nn.matmul import parse_active_share

Jaxpr: TypeAlias = Any
"""An open or closed jaxpr. JAX has no public types for jaxprs, equations and variables."""
Equation: TypeAlias = Any
Constants: TypeAlias = Mapping[Any, Any]
"""Mapping from jaxpr variables to the constants that they hold."""

Sizes: TypeAlias = tuple[int, int, int, int]
"""`many`, `rows`, `columns` and `depth` of a `Matmul`."""


class Matmul(NamedTuple):
    """A batched matrix product `(many, rows, depth) @ (many, depth, columns)`, computed `times` times.

    `active` is the share of the product that contributes to the result, as `(used, computed)`; see
    `nn.matmul.active_share`.
    """

    times: int
    many: int
    rows: int
    columns: int
    depth: int
    active: tuple[int, int] = (1, 1)

    @property
    def operations(self) -> int:
        """The FLOPs of all repetitions. A multiply-add counts as two FLOPs."""
        return 2 * prod(self[:5])

    @property
    def active_operations(self) -> int:
        """The FLOPs of all repetitions that contribute to the result."""
        used, computed = self.active
        return self.operations * used // computed


def matmul_flops(jaxpr: Jaxpr, *, active: bool = False) -> int:
    """Return the FLOPs of all matrix products in a jaxpr; `active` counts those that contribute to the result."""
    return sum(matmul.active_operations if active else matmul.operations for matmul in list_matmuls(jaxpr))


def kernel_matmuls(jaxpr: Jaxpr) -> dict[str, list[Matmul]]:
    """Return the matrix products inside the Pallas kernels of a jaxpr, by kernel name."""
    by_kernel: dict[str, list[Matmul]] = {}
    for name, matmul in _walk(jaxpr, 1, {}, ""):
        if name:
            by_kernel.setdefault(name, []).append(matmul)
    return by_kernel


def list_matmuls(jaxpr: Jaxpr) -> Iterator[Matmul]:
    """Yield every matrix product in a jaxpr, including convolutions and grouped products (`ragged_dot`).

    Products in a loop of known length are multiplied by that length. The body of a loop of unknown length counts once
    (see `count_unbounded_loops`). For a conditional, only the most expensive branch counts. Products in a Pallas kernel
    are multiplied by the size of the kernel's grid. In splash attention, completely masked blocks are not counted.
    """
    return (matmul for _, matmul in _walk(jaxpr, 1, {}, ""))


def _walk(
    jaxpr: Jaxpr, times: int, known: Constants, kernel: str, active: tuple[int, int] = (1, 1)
) -> Iterator[tuple[str, Matmul]]:
    """Yield every matrix product with the name of its Pallas kernel; the name is empty outside kernels."""
    jaxpr, known = _open(jaxpr, known)
    for eqn in jaxpr.eqns:
        name, share = eqn.primitive.name, parse_active_share(str(eqn.source_info.name_stack)) or active
        if product := PRODUCTS.get(name):
            yield kernel, Matmul(times, *product(eqn), share)
        elif name == "cond":
            parts = _called_jaxprs(eqn, known)
            branches = [list(_walk(branch, times, given, kernel, share)) for branch, given in parts]
            yield from max(branches, key=lambda products: sum(matmul.operations for _, matmul in products))
        else:
            within = (eqn.params["name"] or "unnamed") if name == "pallas_call" else kernel
            for part, given in _called_jaxprs(eqn, known):
                yield from _walk(part, times * _repetitions(eqn, known), given, within, share)


def count_unbounded_loops(jaxpr: Jaxpr) -> int:
    """Return the number of loops of unknown length that contain matrix products."""
    jaxpr, _ = _open(jaxpr, {})
    loops = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    return sum(matmul_flops(eqn.params["body_jaxpr"]) > 0 for eqn in loops) + sum(
        count_unbounded_loops(part)
        for eqn in jaxpr.eqns
        if eqn.primitive.name != "pallas_call"
        for part in inner_jaxprs(eqn.params)
    )


def inner_jaxprs(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the jaxprs that an equation calls, including branches, without their constants."""
    return [getattr(part, "jaxpr", part) for part in _inner_closed_jaxprs(params)]


def _inner_closed_jaxprs(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the jaxprs that an equation calls, as closed jaxprs if they have constants."""
    parts = [part for value in params.values() for part in (value if isinstance(value, tuple | list) else (value,))]
    return [part for part in parts if hasattr(getattr(part, "jaxpr", part), "eqns")]


def _open(jaxpr: Jaxpr, known: Constants) -> tuple[Jaxpr, Constants]:
    """Return an open jaxpr and its known constants."""
    if not hasattr(jaxpr, "consts"):
        return jaxpr, known
    return jaxpr.jaxpr, {**known, **dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))}


def _called_jaxprs(eqn: Equation, known: Constants) -> Iterator[tuple[Jaxpr, Constants]]:
    """Yield each jaxpr that an equation calls, with the inputs of the jaxpr that are known constants."""
    skip = {"cond": 1, "while": eqn.params.get("cond_nconsts", 0)}.get(eqn.primitive.name, 0)
    fixed = eqn.params.get("num_consts" if eqn.primitive.name == "scan" else "body_nconsts", len(eqn.invars))
    for part in _inner_closed_jaxprs(eqn.params):
        into, given = getattr(part, "jaxpr", part).invars, eqn.invars[skip:]
        pairs = zip(into[:fixed], given[:fixed], strict=True) if len(into) == len(given) else ()
        yield part, {to: known[by] for to, by in pairs if not hasattr(by, "val") and by in known}


def _repetitions(eqn: Equation, known: Constants) -> int:
    """Return the number of times that an equation evaluates the jaxprs that it calls."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name != "pallas_call":
        return 1
    grid = eqn.params["grid_mapping"]
    rounds = prod(size for size in grid.grid if isinstance(size, int))
    if (eqn.params["name"] or "").startswith(SPLASH) and grid.num_index_operands > 1:
        blocks = known.get(eqn.invars[1])  # 0 for each block that is completely masked
        if blocks is not None:
            return rounds * int(np.count_nonzero(blocks)) // np.size(blocks)
    return rounds


SPLASH = "splash_m"  # prefix of the names of splash attention's kernels


def _dot(eqn: Equation) -> Sizes:
    (contract, rest), (batch, other) = eqn.params["dimension_numbers"]
    return _contraction(eqn, contract, batch, (*rest, *other))


def _ragged(eqn: Equation) -> Sizes:
    """Return the sizes of a grouped product, in which each row is multiplied with the matrix of one group."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contract, rest), (batch, other) = numbers.dot_dimension_numbers
    return _contraction(eqn, contract, batch, (*rest, *other, *numbers.rhs_group_dimensions))


def _contraction(eqn: Equation, contract: Sequence[int], batch: Sequence[int], not_columns: Sequence[int]) -> Sizes:
    left, right = (v.aval.shape for v in eqn.invars[:2])
    rows = prod(size for i, size in enumerate(left) if i not in (*contract, *batch))
    columns = prod(size for i, size in enumerate(right) if i not in not_columns)
    return prod(left[i] for i in batch), rows, columns, prod(left[i] for i in contract)


def _convolution(eqn: Equation) -> Sizes:
    """Return the sizes of a convolution, written as a matrix product of windows and kernels.

    Windows that overlap the border count in full. Zeros that dilation inserts (as in the gradient of a strided
    convolution) do not count.
    """
    numbers, (_, kernel) = eqn.params["dimension_numbers"], (v.aval.shape for v in eqn.invars[:2])
    (out,) = (v.aval.shape for v in eqn.outvars)
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    features = kernel[numbers.rhs_spec[0]]
    windows = prod(size for i, size in enumerate(out) if i != numbers.out_spec[1])
    depth = prod(size for i, size in enumerate(kernel) if i != numbers.rhs_spec[0])
    return groups, windows // prod(eqn.params["lhs_dilation"]), features // groups, depth


PRODUCTS: dict[str, Callable[[Equation], Sizes]] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged,
    "conv_general_dilated": _convolution,
}
