"""What the fake Cloud TPU API is made of: names, times, pages, operations, and what may be asked for."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from taetpu.cloud.catalogue import offer
from taetpu.cloud.fakes.world import Pending, Refused, World
from taetpu.core.chips import Slice, generations, resolve
from taetpu.core.errors import UserError

Data = dict[str, Any]

KIND = "type.googleapis.com/google.cloud.tpu.v2."
EMPTY = "type.googleapis.com/google.protobuf.Empty"
GENERATIONS = {
    "V2": "v2", "V3": "v3", "V4": "v4", "V5LITE_POD": "v5e", "V5P": "v5p", "V6E": "v6e",
    2: "v2", 4: "v3", 7: "v4", 9: "v5e", 10: "v5p", 11: "v6e",
}  # fmt: skip
"""AcceleratorConfig.Type of the API, by name and by number, both of which JSON may have, to our names."""
RUNTIMES = sorted({"tpu-ubuntu2204-base", *(chip.runtime for chip in generations() if chip.runtime)})
BAD = "Cloud TPU received a bad request."


def offered() -> dict[str, list[str]]:
    """Accelerator types by zone, as far as the catalogue knows."""
    zones: dict[str, list[str]] = {}
    for chip in generations():
        known = offer(chip.slices()[0])
        for zone in known.zones if "tpu-api" in known.backends else ():
            zones.setdefault(zone, []).extend(tpu.name for tpu in chip.slices())
    return dict(sorted(zones.items()))


def check_zone(zone: str, zones: dict[str, list[str]], project: str) -> None:
    """Refuse a zone that there is not, in the words that were seen on the real API for one that is closed."""
    if zone not in zones:
        facts = {"consumer": f"projects/{project}", "location": zone, "service": "tpu.googleapis.com"}
        message = f"Permission denied on 'locations/{zone}' (or it may not exist)."
        raise Refused(7, message, "LOCATION_POLICY_VIOLATED", facts)


def check_node(node: Data, zone: str, types: list[str]) -> Slice:
    """The slice that a node asks for. The words for a type were seen on the real API, those for a runtime were not."""
    asked = node.get("acceleratorType", "")
    if config := node.get("acceleratorConfig"):
        asked = f"{GENERATIONS.get(config['type'], '')}:{config['topology']}"
    try:
        tpu = resolve(asked)
    except UserError:
        tpu = None
    if tpu is None or tpu.name not in types:
        where = f'could not be found in the zonal accelerator configurations for "{zone}".'
        begin = f'{BAD} The requested accelerator configuration for accelerator type, "{asked}", {where}'
        raise Refused(3, f"{begin}; the accelerator {asked} was not found in zone {zone} [EID: 0x1]")
    if node.get("runtimeVersion", "") not in RUNTIMES:
        raise Refused(3, f'{BAD} Runtime version "{node.get("runtimeVersion", "")}" was not found. [EID: 0x2]')
    return tpu


def page(kind: str, request: Data, rows: Iterable[Data], most: int, unreachable: Iterable[str] = ()) -> Data:
    """A page of a list: what is in the zone that the request names, or in any if it names `-`."""
    parent, gone = request["parent"].removesuffix("/-"), sorted(unreachable)
    found = [row for row in rows if row["name"].startswith(f"{parent}/") and part(row["name"], "locations") not in gone]
    first = int(request.get("pageToken") or 0)
    last = first + min(int(request.get("pageSize") or most), most)
    answer: Data = {kind: found[first:last]}
    if last < len(found):
        answer["nextPageToken"] = str(last)
    if request["parent"].endswith("/-") and gone:
        answer["unreachable"] = [f"{parent}/{zone}" for zone in gone]
    return answer


def begin(
    world: World, call: str, target: str, finish: Callable[[], Any], result: Callable[[], Data] | None = None
) -> Pending:
    """An operation on a resource; `result` gives what it answers, nothing if it is None."""
    verb = re.split("(?<=[a-z])(?=[A-Z])", call)[0].lower()
    return world.operation(call, part(target, "locations"), finish, verb=verb, target=target, result=result)


def told(operation: Pending) -> Data:
    """An operation as `google.longrunning` has it."""
    target, verb, result = (operation.about[key] for key in ("target", "verb", "result"))
    parent = f"projects/{part(target, 'projects')}/locations/{operation.zone}"
    metadata = {"@type": f"{KIND}OperationMetadata", "target": target, "verb": verb, "apiVersion": "v2"}
    data: Data = {"name": f"{parent}/operations/{operation.name}", "metadata": metadata, "done": operation.done}
    if operation.done and operation.error:
        data["error"] = {"code": operation.error.code, "message": operation.error.message}
    elif operation.done:
        data["response"] = result() if result else {"@type": EMPTY}
    return data


def missing(name: str) -> Refused:
    return Refused(5, f"Resource '{name}' was not found")


def part(name: str, kind: str) -> str:
    """What follows a kind in a resource's name: the zone after `locations`."""
    found = re.search(rf"(?:^|/){kind}/([^/]+)", name)
    return found.group(1) if found else ""


def stamp(moment: float) -> str:
    """Seconds since 1970 as Google writes times."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> float:
    """A time of Google's as seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def seconds(text: str) -> float:
    """A duration of Google's, `14400s`."""
    return float(text.removesuffix("s"))
