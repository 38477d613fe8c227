"""Summaries of traces from JAX's profiler: time in compute, in transfers and idle, and the most expensive operations.

A trace is an XSpace, which consists of planes. Each accelerator has a plane such as `/device:TPU:0` or `/device:GPU:0`.
For a TPU, the line `XLA Ops` of the plane holds the operations, and the line `Async XLA Ops` holds the asynchronous
operations. For a GPU, the plane has a line of kernels and copies per CUDA stream. The operations of a CPU are on the
lines of the host's threads, with the stats `hlo_op` and `device_ordinal`. Transfers between a TPU and its host are on
the plane of the host, and are identified by name.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_COSTLY = 10  # maximum number of operations in a summary

# Operations that contain other operations. The contained operations are counted instead.
CONTAINER = re.compile(r"(while|conditional|cond|call)([.\d]*|[.-](start|done)[.\d]*)")
COLLECTIVE = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective|^nccl|^(send|recv)\b"
    r"|^p(sum|max|min|permute|broadcast)(\W|_|$)",  # names of JAX primitives, which XLA keeps
    re.IGNORECASE,
)
TO_DEVICE = re.compile(r"^Memcpy(H2D|HtoD)|^infeed|^tpu::System::TransferToDevice$", re.IGNORECASE)
FROM_DEVICE = re.compile(r"^Memcpy(D2H|DtoH)|^outfeed|^tpu::System::TransferFromDevice$", re.IGNORECASE)
BETWEEN = re.compile(r"^Memcpy(P2P|PtoP)", re.IGNORECASE)
WINDOW = "train"
"""The annotation around each traced dispatch, from its issue to its result."""
TRANSFERS = ("host to device", "device to host", "between devices")

Span = tuple[float, float]
"""Begin and end in nanoseconds."""


@dataclass(frozen=True)
class Operation:
    """An operation of a device. `own` is its time in nanoseconds, excluding nested operations."""

    name: str
    kind: str
    """`compute`, one of `TRANSFERS`, or `container`."""
    span: Span
    own: float


@dataclass
class Device:
    """The operations of one device in a trace."""

    name: str
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True)
class TraceSummary:
    """The summary of a trace. Values are means over the devices.

    Attributes:
        platform: the platform: `tpu`, `gpu` or `cpu`.
        devices: the number of devices that ran operations.
        seconds: the total duration of the windows.
        compute: the share of time during which an operation other than a transfer ran.
        transfer: the share of time during which only transfers ran.
        idle: the share of time during which no operation ran.
        transfers: the seconds spent on each kind of transfer in `TRANSFERS`, including transfers during compute; None
            if the trace does not record this kind.
        costly: the most expensive operations, each with `name`, `seconds`, `share` (of the windows) and `times`.
    """

    platform: str
    devices: int
    seconds: float
    compute: float
    transfer: float
    idle: float
    transfers: dict[str, float | None]
    costly: list[dict[str, Any]]


def trace_file(folder: Path) -> Path:
    """Return the file that `jax.profiler.start_trace(folder)` wrote.

    Raises:
        FileNotFoundError: if no trace was written.
    """
    found = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not found:
        raise FileNotFoundError(f"no trace was written below {folder}")
    return found[-1]


def summarize_trace(trace: Any) -> TraceSummary:
    """Return the summary of the traced dispatches, which are annotated with `WINDOW`.

    Args:
        trace: a `jax.profiler.ProfileData`.

    Raises:
        ValueError: if the trace has no windows.
    """
    planes = {plane.name: plane for plane in trace.planes}
    host = planes.get("/host:CPU")
    accelerators = [p for name, p in planes.items() if re.fullmatch(r"/device:(TPU|GPU):\d+", name)]
    devices = [device for plane in accelerators if (device := read_accelerator(plane)).operations]
    platform = "tpu" if any(":TPU:" in p.name for p in accelerators) else "gpu" if accelerators else "cpu"
    if platform == "cpu":
        devices = read_cpu(host)
    windows = find_windows(host)
    devices = [Device(d.name, [op for op in d.operations if starts_inside(op.span, windows)]) for d in devices]
    window = covered_time(windows)
    shares = [_shares(device, window) for device in devices] or [(0.0, 0.0)]
    compute, transfer = (sum(part) / len(shares) for part in zip(*shares, strict=True))
    return TraceSummary(
        platform=platform,
        devices=len(devices),
        seconds=window / 1e9,
        compute=compute,
        transfer=transfer,
        idle=max(0.0, 1 - compute - transfer),
        transfers=_transfers(platform, devices, host, windows),
        costly=_costly(devices, window),
    )


def find_windows(host: Any) -> list[Span]:
    """Return the spans of the traced dispatches.

    Raises:
        ValueError: if there are none.
    """
    found = [_span(e) for line in (host.lines if host is not None else ()) for e in line.events if e.name == WINDOW]
    if not found:
        raise ValueError(f"this trace has no steps that are marked as {WINDOW!r}")
    return sorted(found)


def starts_inside(span: Span, windows: Sequence[Span]) -> bool:
    """Return whether a span starts in a window.

    Such a span also ends in the window, since a window ends when the result of its dispatch is ready.
    """
    return any(begin <= span[0] < end for begin, end in windows)


# --- operations ------------------------------------------------------------------------------------------------------


def read_accelerator(plane: Any) -> Device:
    """Return the operations in the plane of an accelerator."""
    device = Device(plane.name)
    for line in plane.lines:
        if line.name == "XLA Ops" or line.name.startswith("Stream #"):
            device.operations += nest_operations((event.name, _span(event)) for event in line.events)
        elif line.name == "Async XLA Ops":  # copies within device memory run beside compute and are not counted
            found = nest_operations((event.name, _span(event)) for event in line.events)
            device.operations += [operation for operation in found if operation.kind in TRANSFERS]
    return device


def read_cpu(host: Any) -> list[Device]:
    """Return the operations of the devices of a CPU, which are threads of the host."""
    devices: dict[int, Device] = {}
    for line in host.lines if host is not None else ():
        found: dict[int, list[tuple[str, Span]]] = defaultdict(list)
        for event in line.events:
            if event.name.startswith("end: ") or not event.duration_ns:
                continue
            stats = dict(event.stats)
            if "hlo_op" in stats:
                found[int(stats.get("device_ordinal", 0))].append((event.name, _span(event)))
        for ordinal, events in found.items():
            devices.setdefault(ordinal, Device(f"cpu:{ordinal}")).operations += nest_operations(events)
    return [devices[ordinal] for ordinal in sorted(devices)]


def nest_operations(events: Iterable[tuple[str, Span]]) -> list[Operation]:
    """Return the operations on one line. The time of a nested operation is subtracted from its parent's time."""
    found: list[tuple[str, Span]] = sorted(events, key=lambda event: (event[1][0], -event[1][1]))
    own = [end - begin for _, (begin, end) in found]
    open_: list[int] = []
    for i, (_, (begin, end)) in enumerate(found):
        while open_ and found[open_[-1]][1][1] <= begin:
            open_.pop()
        if open_ and end <= found[open_[-1]][1][1]:
            own[open_[-1]] -= end - begin
        open_.append(i)
    return [
        Operation(_short(name), classify(name), span, max(0.0, t)) for (name, span), t in zip(found, own, strict=True)
    ]


def classify(name: str) -> str:
    """Return the kind of an operation, based on its name, or on its opcode if the name is HLO text, as on TPUs."""
    text = re.match(r"%?\S+ = .*?\s([a-z][a-z0-9-]*)\(", name)
    name = text[1] if text else _short(name)
    if CONTAINER.fullmatch(name):
        return "container"
    for pattern, kind in ((TO_DEVICE, TRANSFERS[0]), (FROM_DEVICE, TRANSFERS[1]), (BETWEEN, TRANSFERS[2])):
        if pattern.search(name):
            return kind
    return TRANSFERS[2] if COLLECTIVE.search(name) else "compute"


def _short(name: str) -> str:
    """Return the name in HLO text, e.g. `fusion.3` for `%fusion.3 = f32[8]{0} fusion(...)`."""
    return name.split(" = ")[0].removeprefix("%")


def _span(event: Any) -> Span:
    return event.start_ns, event.start_ns + event.duration_ns


# --- figures ---------------------------------------------------------------------------------------------------------


def covered_time(spans: Iterable[Span]) -> float:
    """Return the total time covered by spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _shares(device: Device, window: float) -> tuple[float, float]:
    """Return the shares of the window spent on compute, and on transfers without compute."""
    compute = [op.span for op in device.operations if op.kind == "compute"]
    busy = [op.span for op in device.operations if op.kind != "container"]
    return covered_time(compute) / window, (covered_time(busy) - covered_time(compute)) / window


def _transfers(platform: str, devices: Sequence[Device], host: Any, windows: Sequence[Span]) -> dict[str, float | None]:
    """Return the seconds spent on each kind of transfer.

    For a TPU, transfers from and to the host are read from the host's plane, which has the transfers of all devices.
    """
    found: dict[str, float | None] = {}
    for kind in TRANSFERS:
        spans = [covered_time(op.span for op in device.operations if op.kind == kind) for device in devices]
        found[kind] = sum(spans) / max(1, len(spans)) / 1e9
    if platform == "cpu":  # host and device share one memory
        return found | {TRANSFERS[0]: None, TRANSFERS[1]: None}
    if platform == "tpu":
        events = [event for line in host.lines for event in line.events if starts_inside(_span(event), windows)]
        for kind, pattern in ((TRANSFERS[0], TO_DEVICE), (TRANSFERS[1], FROM_DEVICE)):
            spans = [_span(event) for event in events if pattern.search(event.name)]
            found[kind] = (found[kind] or 0.0) + covered_time(spans) / 1e9
    return found


def _costly(devices: Sequence[Device], window: float) -> list[dict[str, Any]]:
    """Return the most expensive operations, with times averaged over the devices."""
    taken: dict[str, tuple[float, int]] = {}
    for op in (op for device in devices for op in device.operations if op.kind != "container"):
        seconds, times = taken.get(op.name, (0.0, 0))
        taken[op.name] = seconds + op.own, times + 1
    most = sorted(taken.items(), key=lambda item: -item[1][0])[:MOST_COSTLY]
    many = max(1, len(devices))
    return [
        {"name": name, "seconds": own / many / 1e9, "share": own / many / window, "times": times}
        for name, (own, times) in most
    ]
