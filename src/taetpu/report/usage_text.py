"""Format device usage for the terminal, logs and the live page."""

from collections.abc import Mapping

GIB = 2**30


def describe_usage(times: Mapping[str, float]) -> str:
    """Format the recorded device usage, e.g. as `41% of peak, memory 3.1 of 16.0 GiB`.

    Args:
        times: recorded values. The function uses `utilisation`, `memory_bytes` and `memory_limit` if they are present.
    """
    known = [f"{_percent(times['utilisation'])} of peak"] if "utilisation" in times else []
    if "memory_bytes" in times:
        limit = f" of {times['memory_limit'] / GIB:.1f}" if "memory_limit" in times else ""
        known.append(f"memory {times['memory_bytes'] / GIB:.1f}{limit} GiB")
    return ", ".join(known)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
