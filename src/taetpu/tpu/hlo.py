"""The text of a compiled TPU program, read for what a step costs: cycles, memory traffic, loops.

The compiler writes an estimate of its own beside most operations. A loop's body stands once, however often it runs: its
trip count is the constant that the loop's condition compares with. The loop over the steps of a dispatch has none,
since their number is an input; what one of its rounds takes is a step.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

BITS = {"pred": 8, "c64": 64, "c128": 128}  # of types whose name does not say
ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
OP = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
DONE = ("copy", "async", "slice", "all-reduce", "all-gather", "collective-permute")
MOVES_NOTHING = frozenset(f"{kind}-done" for kind in DONE) | {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "opt-barrier", "async-update", "partition-id", "replica-id", "domain",
}  # fmt: skip
EXCHANGES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all"}
READS_A_PART = frozenset(("dynamic-slice", "gather", "slice", "slice-start", "async-start", "dynamic-update-slice"))


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        result: its type as text, layouts among it.
        operands: names.
        line: all of it.
    """

    name: str
    kind: str
    result: str
    operands: tuple[str, ...]
    line: str

    def called(self, role: str) -> list[str]:
        """The computations that it calls as `body`, `condition`, `to_apply` or `branch_computations`."""
        found = re.search(rf"\b{role}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.line)
        return re.findall(r"[\w.\-]+", found[1] or found[2]) if found else []


@dataclass
class Cost:
    """What is executed once.

    Attributes:
        cycles: the compiler's estimate, of operations that have one; transfers that it overlaps have none.
        bytes: read from and written to HBM, tiles padded; what a fusion reads in part counts whole.
    """

    cycles: int = 0
    bytes: int = 0

    def add(self, other: "Cost", times: int = 1) -> None:
        self.cycles += times * other.cycles
        self.bytes += times * other.bytes


@dataclass
class Module:
    """A program's computations by name."""

    computations: dict[str, list[Op]]
    entry: str

    @cached_property
    def loops(self) -> dict[str, int | None]:
        """The trip count of every loop by its body; None where the condition compares with no constant."""
        found = {}
        for op in (op for ops in self.computations.values() for op in ops if op.kind == "while"):
            (body,), (condition,) = op.called("body"), op.called("condition")
            found[body] = self._trips(condition)
        return found

    @cached_property
    def kernels(self) -> int:
        """How many operations are kernels, of which the text does not say what they cost."""
        return sum("tpu_custom_call" in op.line for ops in self.computations.values() for op in ops)

    @cached_property
    def collectives(self) -> int:
        """How many operations exchange data between devices."""
        return sum(op.kind.removesuffix("-start") in EXCHANGES for ops in self.computations.values() for op in ops)

    def _trips(self, condition: str) -> int | None:
        text = "\n".join(op.line for op in self.computations.get(condition, ()))
        compared = re.search(r"ROOT .*compare\(([^)]*)\), direction=LT", text)
        for name in re.findall(r"%([\w.\-]+)", compared[1]) if compared else ():
            if constant := re.search(rf"%{re.escape(name)} = s32\[\][^=]*constant\((\d+)\)", text):
                return int(constant[1])
        return None

    @cached_property
    def step(self) -> Cost:
        """What one round of the loop over steps costs; of a program without one, what the whole costs."""
        return self.cost(self.step_loop or self.entry)

    @cached_property
    def step_loop(self) -> str | None:
        """The body of the loop over steps."""
        return self._step_loop(self.entry)

    def _step_loop(self, name: str) -> str | None:
        """The outermost loop without a trip count."""
        for op in self.computations[name]:
            if op.kind == "while":
                (body,) = op.called("body")
                if self.loops[body] is None:
                    return body
        for op in self.computations[name]:
            for inner in op.called("body") + op.called("to_apply") if op.kind in ("while", "call") else ():
                if found := self._step_loop(inner):
                    return found
        return None

    def cost(self, name: str) -> Cost:
        """What a computation costs, its loops by their trips; of branches, the most costly."""
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
        """Bytes that an operation moves to or from HBM; `ops` are those of its computation."""
        results = list(map(_bytes, ARRAY.finditer(op.result)))
        if op.kind in MOVES_NOTHING:
            return 0
        if op.kind in READS_A_PART:
            return 2 * min((size for size in results if size), default=0)
        if op.kind in ("copy-start", "fusion-start"):
            return sum(results)  # the result, then what is copied
        read = [sum(map(_bytes, ARRAY.finditer(ops[n].result))) if _one(n, ops) else 0 for n in op.operands]
        fused = self.computations.get(next(iter(op.called("calls")), ""), []) if op.kind == "fusion" else []
        for number, size in _in_part(fused).items():
            read[number] = min(read[number], size)
        updated = [_updated(fused, i) for i in range(len(results))]
        results = [size if part is None else min(size, part) for size, part in zip(results, updated, strict=True)]
        return sum(read) + sum(results)


def parse(text: str) -> Module:
    """A module from its text. Raises `ValueError` where there is no entry computation."""
    computations: dict[str, list[Op]] = {}
    entry, current = None, None
    for line in text.splitlines():
        head = HEAD.match(line)
        if head and not line.startswith(" "):
            current = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif current is not None and (found := _op(line)):
            current.append(found)
    if entry is None:
        raise ValueError("this is not the text of a program")
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
    """Where the bracket that `text` begins with is closed."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text) - 1


def _in_part(fused: Sequence[Op]) -> dict[int, int]:
    """Of a fusion's operands that it only takes slices of, or writes slices into: the bytes of those, by number.

    A loop over layers does so with the arrays that hold all layers.
    """
    found = {}
    for parameter in (op for op in fused if op.kind == "parameter"):
        users = [op for op in fused if parameter.name in op.operands]
        if users and all(_reads_part(op, parameter.name) for op in users):
            number = int(re.search(r"parameter\((\d+)\)", parameter.line)[1])  # type: ignore[index]
            sliced = (op for op in users if op.kind != "dynamic-update-slice")
            found[number] = sum(_plain(op.result) for op in sliced)
    return found


def _reads_part(op: Op, name: str) -> bool:
    return op.kind in ("dynamic-slice", "gather", "slice", "dynamic-update-slice") and op.operands[0] == name


def _updated(fused: Sequence[Op], number: int) -> int | None:
    """Where a fusion's result is one of its operands with a slice replaced: the bytes of the slice."""
    ops = {op.name: op for op in fused}
    root = next((op for op in fused if op.line.lstrip().startswith("ROOT")), None)
    while root is not None and root.kind in ("tuple", "bitcast"):
        names = root.operands if root.kind == "bitcast" else root.operands[number : number + 1]
        root = ops.get(names[0]) if names else None
    if root is None or root.kind != "dynamic-update-slice" or root.operands[1] not in ops:
        return None
    return _plain(ops[root.operands[1]].result)


def _plain(result: str) -> int:
    """Bytes of an array wherever it lies."""
    return sum(padded_bytes(array[1], array[2], array[3] or "") for array in ARRAY.finditer(result))


def _one(name: str, ops: Mapping[str, Op]) -> bool:
    """Is it an array of this computation rather than a tuple of many?"""
    return name in ops and not ops[name].result.startswith("(")


def _bytes(array: "re.Match[str]") -> int:
    """An array's bytes in HBM, 0 where it lies in another memory space."""
    layout = array[3] or ""
    space = re.search(r"S\((\d+)\)", layout)
    return 0 if space and space[1] != "0" else padded_bytes(array[1], array[2], layout)


def padded_bytes(dtype: str, dims: str, layout: str) -> int:
    """Bytes of an array with its tiles filled up.

    Args:
        dims: `8,1024,168`; empty for a scalar.
        layout: minor-to-major axes, then tiles: `2,1,0:T(8,128)(2,1)S(1)`.
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
    """Of an element: `bf16` has 16, `f8e4m3fn` 8."""
    found = re.match(r"[a-z]+(\d+)", dtype)
    return BITS.get(dtype) or (int(found[1]) if found else 0)


def waste(module: Module, name: str) -> Iterator[tuple[str, int, int]]:
    """Of each array that a computation's operations give: its type, its bytes, and those with the tiles filled up."""
    for op in module.computations[name]:
        if op.kind in MOVES_NOTHING:
            continue
        for array in ARRAY.finditer(op.result):
            plain = math.prod(int(size) for size in array[2].split(",") if size) * bits(array[1]) // 8
            yield f"{array[1]}[{array[2]}]", plain, padded_bytes(array[1], array[2], array[3] or "")
