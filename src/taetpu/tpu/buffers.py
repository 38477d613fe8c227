"""What fills a TPU's memory: the largest buffers of a program, by what they hold, read from the compiler's dump."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

OURS = re.compile(r"/taetpu/(nn|optim|data|train)/(\w+)\.py$")
VALUE = re.compile(r" value: <\d+ ([\w.\-]+)\{?[\d,]*\}? @\d+> \(size=(\d+),offset=(\d+)\): ([a-z0-9]+\[[\d,]*\])")
MADE = re.compile(
    r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((?:%([\w.\-]+))?[^\n]*?(?:, calls=%([\w.\-]+)[^\n]*)?$", re.M
)
FUSED = re.compile(r"^%([\w.\-]+) \([^\n]*\{\s*\n(.*?)^\}", re.M | re.S)  # a computation and its lines
NAMED = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = ", re.M)
COPIES = {"copy", "copy-start", "copy-done", "bitcast", "transpose", "reshape", "convert", "get-tuple-element"}
ALLOCATION = re.compile(r"allocation \d+: size (\d+),.*?(?:parameter (\d+), shape \|([^|]*)\||preallocated-temp)")

MOST = 6  # buffers that are told
KEPT = "kept of every layer for the backward pass"


@dataclass(frozen=True)
class Buffer:
    """Buffers of one size that hold the same kind of thing.

    Attributes:
        bytes: of one.
        shape: `bf16[8,1024,168]`.
        what: a parameter's path, or the function whose result it is; empty where the compiler does not say.
        count: how many there are.
    """

    bytes: int
    shape: str
    what: str
    count: int


def largest(folder: Path, count: int = MOST) -> list[Buffer]:
    """The largest buffers of the program whose dump lies in `folder`, the largest first. Without a report, none."""
    report = next(folder.glob("*after_optimizations-buffer-assignment.txt"), None)
    text = next(folder.glob("*after_optimizations.txt"), None)
    if report is None or text is None:
        return []
    names = _Names(text.read_text())
    groups: dict[tuple[int, str, str], int] = {}
    for size, shape, what in _buffers(report.read_text(), names):
        groups[size, shape, what] = groups.get((size, shape, what), 0) + 1
    found = [Buffer(size, shape, what, number) for (size, shape, what), number in groups.items()]
    return sorted(found, key=lambda buffer: -buffer.bytes * buffer.count)[:count]


def _buffers(report: str, names: "_Names") -> Iterator[tuple[int, str, str]]:
    """Size, shape and content of every buffer: arguments, and places of the memory for temporaries."""
    places: dict[tuple[int, int], list[tuple[int, str, str]]] = {}
    like, here = dict[str, str](), None
    for number, line in enumerate(report.splitlines()):
        if allocation := ALLOCATION.match(line):
            in_hbm = "color" not in allocation[0]
            here = number if in_hbm and allocation[2] is None else None
            if allocation[2] is not None:
                what = names.parameter(int(allocation[2]))
                like.setdefault(allocation[3], f"shaped like {what}: a gradient, a moment or a copy")
                yield int(allocation[1]), allocation[3], what
        elif line.startswith("allocation"):
            here = None
        elif here is not None and (value := VALUE.search(line)):
            place = places.setdefault((here, int(value[3])), [])
            place.append((int(value[2]), value[4], value[1]))
    for values in places.values():
        size = max(size for size, *_ in values)
        same = [
            (shape, names.value(name, shape) or like.get(shape, "")) for held, shape, name in values if held == size
        ]
        yield size, *next((one for one in same if one[1]), same[0])


def called(path: str) -> str:
    """What users call an array of a state: `layers[0].block.ffn.up` of a model."""
    return re.sub(r"\bstacks(?:\.(\d+)|\[(\d+)\])", r"layers[\1\2]", path).removeprefix("model.")


def size(shape: str) -> int:
    """Numbers of an array `bf16[8,128]{1,0}`; 0 of what is none."""
    found = re.match(r"\w+\[([\d,]*)\]", shape)
    return prod(int(n) for n in found[1].split(",") if n) if found else 0


class _Names:
    """What the operations of a program's text are called in the source."""

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
        # Of an operation: its result, what it is, its first operand, and the computation that it is the fusion of.
        self.made = {name: rest for name, *rest in MADE.findall(text)}
        self.fused = {name: NAMED.findall(body) for name, body in FUSED.findall(text)}
        self.frame_of = dict(re.findall(r"^\s+(?:ROOT )?%([\w.\-]+) = .*?stack_frame_id=(\d+)", text, re.M))
        entry = text[text.index("\nENTRY") :] if "\nENTRY" in text else ""
        self.parameters = {
            int(number): name.replace("\\'", "'")
            for number, name in re.findall(r' parameter\((\d+)\).*?op_name="args([^"]*)"', entry)
        }

    def parameter(self, number: int) -> str:
        """`model.embedding.weight`, for what is called `[0].model.embedding.weight` in the text."""
        name = re.sub(r"^\[\d+\]\.?", "", self.parameters.get(number, ""))
        return called(re.sub(r"^\['(.*)'\]$", r"\1", name))

    def value(self, name: str, shape: str) -> str:
        """`attention: Attention.attend`, the innermost function of ours that the operation comes from: by its own
        frame, by those of as large arrays that it fuses, the last first, or of what it copies.
        """
        if told := self.function(name):
            return told
        left, seen, general = [name], set[str](), ""
        while left:
            name = left.pop()
            if name in seen:
                continue
            seen.add(name)
            told, (result, kind, operand, calls) = self.function(name), self.made.get(name, ("", "", "", ""))
            if told and told != KEPT and size(result) == size(shape):
                return told
            general = general or (KEPT if told == KEPT else "")
            left += [operand] if kind in COPIES else self.fused.get(calls, [])
        return general

    def function(self, name: str) -> str:
        """The same by the operation's own frame."""
        frame = self.frame_of.get(name)
        seen = set()
        while frame and frame not in seen:
            seen.add(frame)
            entry = self.frames.get(frame, {})
            place = self.places.get(entry.get("file_location_id", ""), {})
            ours = OURS.search(self.files.get(place.get("file_name_id", ""), ""))
            if ours and ours[2] not in ("common", "matmul"):
                if ours[2] == "stack":
                    return KEPT
                function = self.functions.get(place.get("function_name_id", ""), "")
                return f"{ours[2]}: {function.replace('.<locals>', '').replace('.__call__', '')}"
            frame = entry.get("parent_frame_id")
        return ""
