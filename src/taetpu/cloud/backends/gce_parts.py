"""The policy and the template that a slice of several hosts is made with: found by name, told apart by description."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.backends.gce_calls import Calls, Start, pairs
from taetpu.cloud.backends.gce_requests import labels_in, part
from taetpu.cloud.catalogue import region
from taetpu.cloud.errors import Conflict
from taetpu.cloud.spec import OWNER, STACK


@dataclass(frozen=True)
class Kind:
    """A kind of resource, as the library names it: who gets, deletes and lists it, and its fields in that."""

    words: str
    service: str
    field: str
    lister: str
    listed: str


KINDS = (
    Kind(
        "instance template", "RegionInstanceTemplates", "instance_template", "InstanceTemplates", "instance_templates"
    ),
    Kind("workload policy", "ResourcePolicies", "resource_policy", "ResourcePolicies", "resource_policies"),
)
"""In the order in which they can be deleted, after the group that uses both."""


@dataclass(frozen=True)
class Part:
    """One that taetpu made; `labels` are those of its description."""

    kind: Kind
    name: str
    region: str
    labels: dict[str, str]
    created: str

    @property
    def stack(self) -> str:
        return self.labels[STACK]

    @property
    def zone(self) -> str:
        return f"{self.region}-{self.name.removeprefix(f'{self.stack}-')}"


def every(calls: Calls) -> list[Part]:
    """All parts of the project that taetpu made."""
    found: list[Part] = []
    for kind in KINDS:
        for place, one in pairs(calls.everywhere(kind.lister, f"listing {kind.words}s"), kind.listed):
            labels = labels_in(one.description)
            if OWNER in labels and STACK in labels:
                found.append(Part(kind, one.name, place, labels, one.creation_timestamp))
    return found


def removal(calls: Calls, stack: str, zone: str, doing: str, owner: str = "") -> Iterator[Start]:
    """What removes the parts of a stack. One that is not the stack's by its description is left alone.

    Args:
        owner: whose they must be; "": anybody's.
    """
    for kind, _ in _there(calls, stack, zone, doing, owner, mine=True):
        yield lambda kind=kind: calls.remove(
            kind.service, doing, **{"region": region(zone), kind.field: part(stack, zone)}
        )


def refuse_others(calls: Calls, stack: str, zone: str, doing: str, owner: str) -> None:
    """Refuse to make parts where others of their names are that were not made for the owner's stack.

    Raises:
        Conflict: there is one.
    """
    for kind, one in _there(calls, stack, zone, doing, owner, mine=False):
        problem = f"{doing}: there is a {kind.words} {one.name} in {region(zone)} that is not of {stack}"
        theirs = labels_in(one.description).get(OWNER)
        whose = f" of yours, but {theirs}'s" if theirs else ""
        raise Conflict(problem + whose, remedy="choose another name for the TPU, or delete it if it is yours")


def _there(calls: Calls, stack: str, zone: str, doing: str, owner: str, mine: bool) -> Iterator[tuple[Kind, Any]]:
    for kind in KINDS:
        fields = {"region": region(zone), kind.field: part(stack, zone)}
        one = calls.found(kind.service, doing, **fields)
        if one is not None:
            labels = labels_in(one.description)
            if (labels.get(STACK) == stack and owner in ("", labels.get(OWNER))) == mine:
                yield kind, one
