"""Summaries of traces from JAX's profiler: time in compute, in transfers and idle, and the most expensive operations.

A trace consists of planes, which consist of lines of events. Each accelerator has a plane such as `/device:TPU:0`. Its
operations are on the lines `XLA Ops` and `Async XLA Ops` of a TPU, and on one line per CUDA stream of a GPU. The
operations of a CPU are on the lines of the host's threads, with the stats `hlo_op` and `device_ordinal`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_COSTLY = 10  # maximum number of operations in a summary
WINDOW = "train"
"""The annotation around each traced dispatch, from its issue to its result."""

CONTAINER = re.compile(r"(while|conditional|cond|call)([.\d]*|[.-](start|done)[.\d]*)")  # holds other operations
TRANSFER = re.compile(
    r"^Memcpy|^infeed|^outfeed|^nccl|^(send|recv)\b|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all"
    r"|collective|^p(sum|max|min|permute|broadcast)(\W|_|$)",  # p...: names of JAX primitives, which XLA keeps
    re.IGNORECASE,
)

Span = tuple[float, float]
"""Begin and end in nanoseconds."""


class Operation(NamedTuple):
    """An operation of a device."""

    device: str
    name: str
    transfer: bool
    span: Span


def trace_file(folder: Path) -> Path:
    """Return the file that `jax.profiler.start_trace(folder)` wrote.

    Raises:
        FileNotFoundError: if no trace was written.
    """
    files = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        raise FileNotFoundError(f"no trace was written below {folder}")
    return files[-1]


def summarize_trace(trace: Any) -> dict[str, Any]:
    """Return the summary of the traced dispatches, which are annotated with `WINDOW`.

    Args:
        trace: a `jax.profiler.ProfileData`.

    Returns:
        The number of `devices` that ran operations; the total `seconds` of the windows; the shares of this time during
        which an operation other than a transfer ran (`compute`), only transfers ran (`transfer`) and no operation ran
        (`idle`); and the `costly` operations, each with `name`, `seconds`, `share` (of the windows) and `times`. Shares
        and seconds are means over the devices.

    Raises:
        ValueError: if the trace has no windows.
    """
    host = [
        event for plane in trace.planes if plane.name == "/host:CPU" for line in plane.lines for event in line.events
    ]
    windows = [_span(event) for event in host if event.name == WINDOW]
    if not windows:
        raise ValueError(f"this trace has no steps that are marked as {WINDOW!r}")
    # An operation that starts in a window also ends in it: a window ends when the result of its dispatch is ready.
    operations = [op for op in _operations(trace, host) if any(begin <= op.span[0] < end for begin, end in windows)]
    window, devices = covered_time(windows), {op.device for op in operations}
    busy = computed = 0.0
    for device in devices:
        busy += covered_time(op.span for op in operations if op.device == device)
        computed += covered_time(op.span for op in operations if op.device == device and not op.transfer)
    total = window * max(1, len(devices))
    return {
        "devices": len(devices),
        "seconds": window / 1e9,
        "compute": computed / total,
        "transfer": (busy - computed) / total,
        "idle": max(0.0, 1 - busy / total),
        "costly": _costly(operations, total, len(devices)),
    }


def _operations(trace: Any, host: Iterable[Any]) -> Iterator[Operation]:
    """Yield the operations of all devices, except operations that contain other operations."""
    for plane in trace.planes:
        for line in plane.lines if re.fullmatch(r"/device:(TPU|GPU):\d+", plane.name) else ():
            beside = line.name == "Async XLA Ops"  # copies within device memory run beside compute and are not counted
            if beside or line.name == "XLA Ops" or line.name.startswith("Stream #"):
                for event in line.events:
                    yield from (op for op in _read(plane.name, event) if op.transfer or not beside)
    for event in host:
        if event.duration_ns and "hlo_op" in (stats := dict(event.stats)):
            yield from _read(f"cpu:{stats.get('device_ordinal', 0)}", event)


def _read(device: str, event: Any) -> Iterator[Operation]:
    """Yield the operation of an event, unless the event is a container or marks the end of another operation.

    The name of an event is the name of an operation or, on TPUs, HLO text such as `%psum.3 = f32[8] all-reduce(...)`.
    """
    name = event.name.split(" = ")[0].removeprefix("%")
    text = re.match(r"%?\S+ = .*?\s([a-z][a-z0-9-]*)\(", event.name)
    opcode = text[1] if text else name
    if not CONTAINER.fullmatch(opcode) and not name.startswith("end: "):
        yield Operation(device, name, TRANSFER.search(opcode) is not None, _span(event))


def _span(event: Any) -> Span:
    return event.start_ns, event.start_ns + event.duration_ns


def covered_time(spans: Iterable[Span]) -> float:
    """Return the total time covered by spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _costly(operations: Iterable[Operation], total: float, devices: int) -> list[dict[str, Any]]:
    """Return the most expensive operations; `total` is the time of the windows on all devices."""
    durations: dict[str, list[float]] = {}
    for op in operations:
        durations.setdefault(op.name, []).append(op.span[1] - op.span[0])
    most = sorted(durations.items(), key=lambda item: -sum(item[1]))[:MOST_COSTLY]
    return [
        {"name": name, "seconds": sum(times) / devices / 1e9, "share": sum(times) / total, "times": len(times)}
        for name, times in most
    ]
