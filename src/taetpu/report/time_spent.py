"""Read and describe what the time of a study's packs was spent on."""

from collections.abc import Iterable

from taetpu.store.pack_times import PARTS, PackTime, Parts

LEAST_SHARE = 0.005
"""Share of the time below which a part is not named in a sentence."""


def total_parts(times: Iterable[PackTime]) -> Parts:
    """Return the seconds of all packs and waits by part; empty if none has parts, as in studies of earlier versions."""
    measured = [parts for time in times if (parts := time.get("parts"))]
    return {part: sum(parts.get(part, 0.0) for parts in measured) for part in PARTS} if measured else {}


def parts_by_arm(times: Iterable[PackTime]) -> dict[str, Parts]:
    """Return the seconds of each arm by part. The time of a pack is divided evenly among its runs."""
    totals: dict[str, Parts] = {}
    for time in times:
        parts, arms = time.get("parts", {}), time.get("arms", {})
        for arm, runs in arms.items():
            total = totals.setdefault(arm, dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                total[part] += parts.get(part, 0.0) * runs / sum(arms.values())
    return totals


def describe_parts(parts: Parts) -> str:
    """Return the shares of the parts, the largest first, such as `61 % trained, 39 % compiled`; "" without time."""
    total = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda item: item[1], reverse=True)
    shown = [(part, seconds / total) for part, seconds in ordered if seconds > LEAST_SHARE * total]
    return ", ".join(f"{100 * share:.0f} % {part}" for part, share in shown)
