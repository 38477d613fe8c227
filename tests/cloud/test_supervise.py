"""A job continues across lost machines until it ends or reaches a limit; the clock is fake."""

from dataclasses import dataclass, field

import pytest

from taetpu.cloud import lifecycle
from taetpu.cloud import supervise as module
from taetpu.cloud.gcloud import CloudError, NoCapacity, Preempted
from taetpu.cloud.machine_api import Machine
from taetpu.cloud.settings import Settings
from taetpu.cloud.supervise import Limits, Lost, supervise

HOUR = 3600.0


@dataclass
class Scene:
    """Machines that are lost after some hours, a job that stores results before that, and a clock.

    Attributes:
        lives: hours until each machine in turn is lost; the last one lives until the job ends.
        stores: whether results are stored on each machine in turn.
        refusals: how often no machine can be had after the first.
        first: raised instead of making the first machine.
    """

    lives: list[float]
    stores: list[bool] = field(default_factory=list)
    refusals: int = 0
    first: Exception | None = None
    now: float = 0.0
    asked: list[float] = field(default_factory=list)
    deleted: int = 0
    results: int = 0
    deleter: str = ""
    slept: list[float] = field(default_factory=list)

    def make(self, hours: float) -> Machine:
        if self.first:
            error, self.first = self.first, None
            raise error
        if self.asked and self.refusals:
            self.refusals -= 1
            raise NoCapacity("the zone has none")
        self.asked.append(hours)
        return Machine("box", "us-east5-b", "gce", "t", "ready", "", {})

    def start(self, machine: Machine) -> None:
        pass

    def follow(self, machine: Machine) -> int:
        number = len(self.asked) - 1
        if number >= len(self.lives):
            return 7
        self.now += self.lives[number] * HOUR
        self.results += not self.stores or self.stores[number]
        raise Lost("no connection")

    def progress(self) -> str:
        return str(self.results)

    def run(self, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> int:
        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

        def delete(*_: object) -> None:
            self.deleted += 1

        for name, stand_in in (("monotonic", lambda: self.now), ("sleep", sleep)):
            monkeypatch.setattr(module.time, name, stand_in)
        monkeypatch.setattr(lifecycle, "find", lambda *_, **__: [])
        monkeypatch.setattr(lifecycle, "delete", delete)
        monkeypatch.setattr(lifecycle, "find_deleter", lambda machine: self.deleter)
        return supervise(self.make, self, limits, Settings(), lambda line: None)


def test_a_machine_deleted_by_a_user_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([1.0], deleter="colleague@example.com")
    with pytest.raises(Lost, match=r"box in us-east5-b .* by colleague@example\.com"):
        scene.run(Limits(4.0), monkeypatch)
    assert scene.asked == [4.0]


def test_a_replacement_gets_the_remaining_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([1.0, 0.5])
    assert scene.run(Limits(4.0), monkeypatch) == 7
    assert scene.asked == pytest.approx([4.0, 3.0, 2.5])
    assert scene.deleted == 2


def test_hours_limit_all_machines_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([1.0] * 9)
    with pytest.raises(Lost, match="3 h"):
        scene.run(Limits(3.0), monkeypatch)
    assert scene.asked == pytest.approx([3.0, 2.0, 1.0])
    assert scene.deleted == 3


def test_losses_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([0.01] * 9)
    with pytest.raises(Lost, match="5 machines") as raised:
        scene.run(Limits(100.0, losses=4), monkeypatch)
    assert "Repeat the command" in str(raised.value.remedy)
    assert scene.deleted == 5


def test_losses_without_progress_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([0.01] * 9, stores=[False, False, True, False, False, False, True, True, True])
    with pytest.raises(Lost, match=r"3 machines .*row") as raised:
        scene.run(Limits(100.0, idle=3), monkeypatch)
    assert len(scene.asked) == 6
    assert "checkpoint" in str(raised.value.remedy)


def test_it_waits_for_capacity_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([1.0], refusals=5)
    assert scene.run(Limits(4.0), monkeypatch) == 7
    assert scene.slept == sorted(scene.slept)
    assert scene.slept[0] < scene.slept[-1] <= 600
    assert scene.asked == pytest.approx([4.0, 3.0])  # waiting costs nothing


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([1.0], refusals=10_000)
    with pytest.raises(NoCapacity):
        scene.run(Limits(4.0, patience=1.0), monkeypatch)
    assert scene.now <= 1.0 * HOUR + 1.0 * HOUR + 700
    assert scene.deleted == 1


def test_nothing_is_used_before_the_first_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([])
    assert scene.run(Limits(4.0), monkeypatch) == 7
    assert (scene.asked, scene.deleted) == ([4.0], 0)


def test_a_machine_preempted_before_it_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch):
    scene = Scene([], first=Preempted("box was not created: PREEMPTED"))
    assert scene.run(Limits(10), monkeypatch) == 7
    assert scene.asked == [10]


def test_it_ends_without_capacity_for_the_first_machine(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NoCapacity):
        Scene([], first=NoCapacity("the zone has none")).run(Limits(10), monkeypatch)


def test_an_error_does_not_keep_other_machines_from_deletion(monkeypatch: pytest.MonkeyPatch):
    machines = [Machine(name, "us-east5-b", "gce", "t", "ready", "", {}) for name in ("a", "b", "c")]
    tried: list[str] = []

    def delete(machine: Machine, *_: object) -> None:
        tried.append(machine.name)
        if machine.name != "c":
            raise CloudError(f"{machine.name} cannot be deleted")

    monkeypatch.setattr(lifecycle, "delete", delete)
    said: list[str] = []
    with pytest.raises(CloudError, match=r"^a cannot"):
        lifecycle.delete_all(machines, Settings(), said.append)
    assert tried == ["a", "b", "c"]
    assert [line.partition(" cannot ")[0] for line in said] == ["a", "b"]
