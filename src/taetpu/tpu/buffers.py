"""Read the largest buffers of a compiled TPU program, and the content of each buffer, from the compiler's dump."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

OWN_SOURCE = re.compile(r"/taetpu/(nn|optim|data|train)/(\w+)\.py$")
VALUE = re.compile(r" value: <\d+ ([\w.\-]+)\{?[\d,]*\}? @\d+> \(size=(\d+),offset=(\d+)\): ([a-z0-9]+\[[\d,]*\])")
OPERATION = re.compile(
    r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((?:%([\w.\-]+))?[^\n]*?(?:, calls=%([\w.\-]+)[^\n]*)?$", re.M
)
COMPUTATION = re.compile(r"^%([\w.\-]+) \([^\n]*\{\s*\n(.*?)^\}", re.M | re.S)
RESULT = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = ", re.M)
COPIES = {"copy", "copy-start", "copy-done", "bitcast", "transpose", "reshape", "convert", "get-tuple-element"}
ALLOCATION = re.compile(r"allocation \d+: size (\d+),.*?(?:parameter (\d+), shape \|([^|]*)\||preallocated-temp)")

LIMIT = 6
"""Maximum number of buffers in a report."""
KEPT = "activations of all layers, kept for the backward pass"


@dataclass(frozen=True)
class Buffer:
    """One or more buffers with the same size, shape and kind of content.

    Attributes:
        bytes: size of each buffer.
        shape: dtype and shape of the content, such as `bf16[8,1024,168]`.
        what: description of the content, such as a parameter's path or the function that computes the content; empty
            if the content is unknown.
        count: number of buffers.
    """

    bytes: int
    shape: str
    what: str
    count: int


def largest_buffers(folder: Path) -> list[Buffer]:
    """Return the largest buffers of a program, in decreasing order of their total size.

    The list is empty if the compiler's dump in `folder` lacks the buffer report or the program text.
    """
    report = next(folder.glob("*after_optimizations-buffer-assignment.txt"), None)
    text = next(folder.glob("*after_optimizations.txt"), None)
    if report is None or text is None:
        return []
    names = _SourceNames(text.read_text(encoding="utf-8", errors="replace"))
    groups: dict[tuple[int, str, str], int] = {}
    for size, shape, what in _buffers(report.read_text(encoding="utf-8", errors="replace"), names):
        groups[size, shape, what] = groups.get((size, shape, what), 0) + 1
    buffers = [Buffer(size, shape, what, number) for (size, shape, what), number in groups.items()]
    return sorted(buffers, key=lambda buffer: -buffer.bytes * buffer.count)[:LIMIT]


def _buffers(report: str, names: "_SourceNames") -> Iterator[tuple[int, str, str]]:
    """Yield the size, shape and content of every buffer. A buffer is an argument or a region of temporary memory."""
    places: dict[tuple[int, int], list[tuple[int, str, str]]] = {}
    like, here = dict[str, str](), None
    for number, line in enumerate(report.splitlines()):
        if allocation := ALLOCATION.match(line):
            in_hbm = "color" not in allocation[0]
            here = number if in_hbm and allocation[2] is None else None
            if allocation[2] is not None:
                what = names.parameter(int(allocation[2]))
                like.setdefault(allocation[3], f"same shape as {what}: a gradient, moment or copy")
                yield int(allocation[1]), allocation[3], what
        elif line.startswith("allocation"):
            here = None
        elif here is not None and (value := VALUE.search(line)):
            place = places.setdefault((here, int(value[3])), [])
            place.append((int(value[2]), value[4], value[1]))
    for values in places.values():
        size = max(size for size, *_ in values)
        full = [
            (shape, names.value(name, shape) or like.get(shape, "")) for held, shape, name in values if held == size
        ]
        yield size, *next((pair for pair in full if pair[1]), full[0])


def display_path(path: str) -> str:
    """Return the path of an array in the state in the form that users write, such as `layers[0].block.ffn.up`."""
    return re.sub(r"\bstacks(?:\.(\d+)|\[(\d+)\])", r"layers[\1\2]", path).removeprefix("model.")


def _num_elements(shape: str) -> int:
    """Return the number of elements in an array type such as `bf16[8,128]{1,0}`; 0 for a tuple."""
    match = re.match(r"\w+\[([\d,]*)\]", shape)
    return prod(int(n) for n in match[1].split(",") if n) if match else 0


class _SourceNames:
    """Maps the operations in a program's text to names in the source code."""

    def __init__(self, text: str):
        tables = {
            name: dict(re.findall(r"^(\d+) (.*)$", part, re.M))
            for name, part in re.findall(r"^(\w+)\n((?:\d+ .*\n)+)", text, re.M)
        }
        self.files, self.functions = (
            {number: quoted.strip('"') for number, quoted in tables.get(name, {}).items()}
            for name in ("FileNames", "FunctionNames")
        )
        self.places, self.frames = (
            {number: dict(re.findall(r"(\w+)=(\d+)", entry)) for number, entry in tables.get(name, {}).items()}
            for name in ("FileLocations", "StackFrames")
        )
        # Maps each operation to its result type, kind, first operand and (for a fusion) fused computation.
        self.operations = {name: rest for name, *rest in OPERATION.findall(text)}
        self.computations = {name: RESULT.findall(body) for name, body in COMPUTATION.findall(text)}
        self.frame_of = dict(re.findall(r"^\s+(?:ROOT )?%([\w.\-]+) = .*?stack_frame_id=(\d+)", text, re.M))
        entry = text[text.index("\nENTRY") :] if "\nENTRY" in text else ""
        self.parameters = {
            int(number): name.replace("\\'", "'")
            for number, name in re.findall(r' parameter\((\d+)\).*?op_name="args([^"]*)"', entry)
        }

    def parameter(self, number: int) -> str:
        """Return the path of a parameter: `embedding.weight` for `[0].model.embedding.weight` in the text."""
        name = re.sub(r"^\[\d+\]\.?", "", self.parameters.get(number, ""))
        return display_path(re.sub(r"^\['(.*)'\]$", r"\1", name))

    def value(self, name: str, shape: str) -> str:
        """Return the innermost taetpu function that produces an operation, such as `attention: Attention.attend`.

        The function is read from the operation's call stack. If the stack contains no taetpu function, the operations
        that this operation fuses (the last one first) or copies are searched. Only operations whose result has as many
        elements as `shape` are considered.
        """
        if function := self.function(name):
            return function
        pending, seen, fallback = [name], set[str](), ""
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            function, (result, kind, operand, calls) = self.function(name), self.operations.get(name, ("", "", "", ""))
            if function and function != KEPT and _num_elements(result) == _num_elements(shape):
                return function
            fallback = fallback or (KEPT if function == KEPT else "")
            pending += [operand] if kind in COPIES else self.computations.get(calls, [])
        return fallback

    def function(self, name: str) -> str:
        """Return the innermost taetpu function in an operation's call stack, or "" if the stack contains none."""
        frame = self.frame_of.get(name)
        seen = set()
        while frame and frame not in seen:
            seen.add(frame)
            entry = self.frames.get(frame, {})
            place = self.places.get(entry.get("file_location_id", ""), {})
            match = OWN_SOURCE.search(self.files.get(place.get("file_name_id", ""), ""))
            if match and match[2] not in ("common", "matmul"):
                if match[2] == "stack":
                    return KEPT
                function = self.functions.get(place.get("function_name_id", ""), "")
                return f"{match[2]}: {function.replace('.<locals>', '').replace('.__call__', '')}"
            frame = entry.get("parent_frame_id")
        return ""
