"""Read the cost of a step from the text of a compiled TPU program: cycles, memory traffic and loops.

The text gives the compiler's estimate of cycles for most operations. The body of a loop appears once in the text; the
loop's trip count is the constant in its condition. The loop over the steps of a dispatch has no such constant, because
the number of steps is an input. One iteration of this loop is a step.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

BITS = {"pred": 8, "c64": 64, "c128": 128}  # bits per element of dtypes whose names are not parsed
ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
OP = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
DONE = ("copy", "async", "slice", "all-reduce", "all-gather", "collective-permute")
MOVES_NOTHING = frozenset(f"{kind}-done" for kind in DONE) | {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "opt-barrier", "async-update", "partition-id", "replica-id", "domain",
}  # fmt: skip
READS_A_PART = frozenset(("dynamic-slice", "gather", "slice", "slice-start", "async-start", "dynamic-update-slice"))


@dataclass(frozen=True)
class Op:
    """An operation.

    Attributes:
        result: type of the result with layouts, as text.
        operands: names of the operands.
        line: the operation's line in the program text.
    """

    name: str
    kind: str
    result: str
    operands: tuple[str, ...]
    line: str

    def called(self, role: str) -> list[str]:
        """Return the computations called in a role: `body`, `condition`, `to_apply` or `branch_computations`."""
        match = re.search(rf"\b{role}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.line)
        return re.findall(r"[\w.\-]+", match[1] or match[2]) if match else []


@dataclass
class Cost:
    """The cost of executing an operation or a computation once.

    Attributes:
        cycles: number of cycles that the compiler estimates, excluding overlapped transfers, which have no estimate.
        bytes: number of bytes read from and written to HBM, including the padding of tiles. An array that a fusion
            reads in part is counted in full, unless slicing is the only use of the array in the fusion.
    """

    cycles: int = 0
    bytes: int = 0

    def add(self, other: "Cost", times: int = 1) -> None:
        """Add another cost, multiplied by `times`."""
        self.cycles += times * other.cycles
        self.bytes += times * other.bytes


@dataclass
class Module:
    """A compiled program.

    Attributes:
        computations: the operations in each computation, by the name of the computation.
        entry: name of the entry computation.
    """

    computations: dict[str, list[Op]]
    entry: str

    @cached_property
    def loops(self) -> dict[str, int | None]:
        """Trip count of every loop, by the name of the loop's body; None if the loop's condition has no constant."""
        trips = {}
        for op in (op for ops in self.computations.values() for op in ops if op.kind == "while"):
            (body,), (condition,) = op.called("body"), op.called("condition")
            trips[body] = self._trips(condition)
        return trips

    @cached_property
    def kernels(self) -> int:
        """Number of operations that call kernels. The text gives no cost for these operations."""
        return sum("tpu_custom_call" in op.line for ops in self.computations.values() for op in ops)

    def _trips(self, condition: str) -> int | None:
        text = "\n".join(op.line for op in self.computations.get(condition, ()))
        compared = re.search(r"ROOT .*compare\(([^)]*)\), direction=LT", text)
        for name in re.findall(r"%([\w.\-]+)", compared[1]) if compared else ():
            if constant := re.search(rf"%{re.escape(name)} = s32\[\][^=]*constant\((\d+)\)", text):
                return int(constant[1])
        return None

    @cached_property
    def step(self) -> Cost:
        """Cost of one iteration of the loop over steps, or of the whole program if it has no such loop."""
        return self.cost(self._step_loop(self.entry) or self.entry)

    def _step_loop(self, name: str) -> str | None:
        """Return the name of the outermost loop body without a trip count; None if all loops have a trip count."""
        for op in self.computations[name]:
            if op.kind == "while":
                (body,) = op.called("body")
                if self.loops[body] is None:
                    return body
        for op in self.computations[name]:
            for inner in op.called("body") + op.called("to_apply") if op.kind in ("while", "call") else ():
                if loop := self._step_loop(inner):
                    return loop
        return None

    def cost(self, name: str) -> Cost:
        """Return the cost of a computation.

        The cost of a loop's body is multiplied by the trip count, or by 1 if the trip count is unknown. A conditional
        has the cost of the branch with the most cycles.
        """
        total, types = Cost(), {op.name: op for op in self.computations[name]}
        for op in self.computations[name]:
            if op.kind == "while":
                (body,) = op.called("body")
                total.add(self.cost(body), self.loops[body] or 1)
            elif op.kind == "call":
                total.add(self.cost(op.called("to_apply")[0]))
            elif op.kind == "conditional":
                branches = op.called("branch_computations") or [
                    *op.called("true_computation"),
                    *op.called("false_computation"),
                ]
                total.add(max(map(self.cost, branches), key=lambda cost: cost.cycles))
            else:
                estimate = CYCLES.search(op.line)
                total.add(Cost(int(estimate[1]) if estimate else 0, self.traffic(op, types)))
        return total

    def traffic(self, op: Op, ops: Mapping[str, Op]) -> int:
        """Return the number of bytes that an operation moves to or from HBM.

        Args:
            ops: all operations in the same computation, by name.
        """
        results = list(map(_hbm_bytes, ARRAY.finditer(op.result)))
        if op.kind in MOVES_NOTHING:
            return 0
        if op.kind in READS_A_PART:
            return 2 * min((size for size in results if size), default=0)
        if op.kind in ("copy-start", "fusion-start"):
            return sum(results)  # the result lists destination and source
        operands = [ops[name].result if name in ops else "" for name in op.operands]
        read = [0 if operand.startswith("(") else sum(map(_hbm_bytes, ARRAY.finditer(operand))) for operand in operands]
        fused = self.computations.get(next(iter(op.called("calls")), ""), []) if op.kind == "fusion" else []
        for number, size in _sliced_operands(fused).items():
            read[number] = min(read[number], size)
        updated = [_updated_bytes(fused, i) for i in range(len(results))]
        results = [size if part is None else min(size, part) for size, part in zip(results, updated, strict=True)]
        return sum(read) + sum(results)


def parse(text: str) -> Module:
    """Parse the text of a program.

    Raises:
        ValueError: if the text has no entry computation.
    """
    computations: dict[str, list[Op]] = {}
    entry, current = None, None
    for line in text.splitlines():
        head = HEAD.match(line)
        if head and not line.startswith(" "):
            current = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif current is not None and (op := _op(line)):
            current.append(op)
    if entry is None:
        raise ValueError("not a program: there is no ENTRY computation")
    return Module(computations, entry)


def _op(line: str) -> Op | None:
    named = OP.match(line)
    if named is None:
        return None
    rest = line[named.end() :]
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    result, call = rest[:end], rest[end:].lstrip()
    kind, bracket, inside = call.partition("(")
    if not bracket:
        return None
    arguments = inside[: _closing("(" + inside) - 1]
    return Op(named[1], kind, result, tuple(re.findall(r"%([\w.\-]+)", arguments)), line)


def _closing(text: str) -> int:
    """Return the index of the bracket that closes the first bracket."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text) - 1


def _sliced_operands(fused: Sequence[Op]) -> dict[int, int]:
    """Return the bytes that a fusion reads from each operand whose only use is slicing, by operand number.

    A slice update also counts as slicing, but reads no bytes of the operand. In loops over layers, fusions slice the
    arrays that contain all layers.
    """
    sizes = {}
    for parameter in (op for op in fused if op.kind == "parameter"):
        users = [op for op in fused if parameter.name in op.operands]
        if users and all(_reads_part(op, parameter.name) for op in users):
            number = int(re.search(r"parameter\((\d+)\)", parameter.line)[1])  # type: ignore[index]
            sliced = (op for op in users if op.kind != "dynamic-update-slice")
            sizes[number] = sum(_padded_result(op.result) for op in sliced)
    return sizes


def _reads_part(op: Op, name: str) -> bool:
    return op.kind in ("dynamic-slice", "gather", "slice", "dynamic-update-slice") and op.operands[0] == name


def _updated_bytes(fused: Sequence[Op], number: int) -> int | None:
    """Return the bytes of the slice that a fusion updates in result `number`, or None if it updates no slice there."""
    ops = {op.name: op for op in fused}
    root = next((op for op in fused if op.line.lstrip().startswith("ROOT")), None)
    while root is not None and root.kind in ("tuple", "bitcast"):
        names = root.operands if root.kind == "bitcast" else root.operands[number : number + 1]
        root = ops.get(names[0]) if names else None
    if root is None or root.kind != "dynamic-update-slice" or root.operands[1] not in ops:
        return None
    return _padded_result(ops[root.operands[1]].result)


def _padded_result(result: str) -> int:
    """Return the bytes of a result, including padding, in any memory space."""
    return sum(padded_bytes(array[1], array[2], array[3] or "") for array in ARRAY.finditer(result))


def _hbm_bytes(array: "re.Match[str]") -> int:
    """Return an array's bytes in HBM; 0 if the array is in another memory space."""
    layout = array[3] or ""
    space = re.search(r"S\((\d+)\)", layout)
    return 0 if space and space[1] != "0" else padded_bytes(array[1], array[2], layout)


def padded_bytes(dtype: str, dims: str, layout: str) -> int:
    """Return the bytes of an array, including the padding of its tiles.

    Args:
        dtype: dtype of the elements, such as `bf16`.
        dims: sizes of the axes, such as `8,1024,168`; empty for a scalar.
        layout: axes from minor to major, then tiles and memory space, such as `2,1,0:T(8,128)(2,1)S(1)`.
    """
    sizes = [int(size) for size in dims.split(",") if size]
    order = [int(axis) for axis in layout.partition(":")[0].split(",") if axis.isdecimal()]
    if len(order) == len(sizes):
        sizes = [sizes[axis] for axis in reversed(order)]
    tile = re.search(r"T\(([\d,]+)\)", layout)
    edges = [int(edge) for edge in tile[1].split(",")] if tile else []
    for i, edge in enumerate(reversed(edges), 1):
        if i <= len(sizes):
            sizes[-i] = -(-sizes[-i] // edge) * edge
    return math.prod(sizes) * bits(dtype) // 8


def bits(dtype: str) -> int:
    """Return the number of bits per element: 16 for `bf16`, 8 for `f8e4m3fn`."""
    match = re.match(r"[a-z]+(\d+)", dtype)
    return BITS.get(dtype) or (int(match[1]) if match else 0)
