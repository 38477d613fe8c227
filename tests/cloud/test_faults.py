"""Faults of Google and of machines: messages, exit code and remains of `up` and `down`."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cloud.commands import CREATES, DOWN, TABLES, UP, ZONE, start, taetpu
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.hosts import parents
from tests.fake_google.project import ACCOUNT
from tests.fake_google.world import Call, Cut, Fault, Moment, Refused, quota, stockout

pytestmark = pytest.mark.slow

MANY = 1000
UNAVAILABLE = Refused(14, "The service is currently unavailable.")
DENIED = "Permission '{}' denied on resource"
DISABLED = "Cloud TPU API has not been used in project 123 before or it is disabled. Enable it by visiting https://x."
POOL = "The zone 'projects/p/zones/us-east5-b' does not have enough resources available to fulfill the request."


@dataclass(frozen=True)
class Case:
    """A fault, and what becomes of a command.

    Attributes:
        api: whose `up` is run, or "" for `down` of a machine of the TPU API.
        inject: brings the fault about; it may return what is called with every call.
        code: exit code.
        said: texts in the messages, among them place and remedy.
        left: whether the machine exists afterwards.
        made: how often a machine was started.
    """

    api: str
    inject: Callable[[FakeGoogle], Callable[[Call, Moment], None] | None]
    code: int
    said: tuple[str, ...] = ()
    left: bool = False
    made: int = 0


def fault(call: str, error: Refused | None, moment: Moment = "before", times: int = MANY, skip: int = 0) -> Callable:
    """Inject a fault at a call."""
    return lambda cloud: cloud.world.faults.append(Fault(call, error, moment=moment, times=times, skip=skip))


def create_fault(api: str, error: Refused | None, moment: Moment = "before", times: int = MANY) -> Callable:
    return fault(CREATES[api], error, moment, times)


def preempt_starting(cloud: FakeGoogle) -> Callable[[Call, Moment], None]:
    """Preempt the machine once, as soon as it exists."""
    done: list[str] = []

    def watch(call: Call, moment: Moment) -> None:
        if moment == "before" and call.name in ("nodes.list", "instances.list") and cloud.hosts.vms and not done:
            done.append(call.name)
            cloud.preempt("box")

    return watch


def kill_gcloud(api: str) -> Callable:
    """Kill gcloud after its request was granted, before it reads the answer."""

    def inject(cloud: FakeGoogle) -> Callable[[Call, Moment], None]:
        done: list[int] = []

        def watch(call: Call, moment: Moment) -> None:
            if call.name == CREATES[api] and moment == "after" and not done:
                done.extend(pid for pid, parent in parents().items() if parent == cloud.started.pid)
                for pid in done:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                raise Cut

        return watch

    return inject


def without_gcloud(cloud: FakeGoogle) -> None:
    """Give machines all programs of this computer except gcloud."""
    folder = cloud.bin.parent / "programs"
    folder.mkdir()
    for program in (entry for place in ("/bin", "/usr/bin") for entry in Path(place).iterdir()):
        with suppress(FileExistsError):
            (folder / program.name).symlink_to(program)
    (folder / "gcloud").unlink(missing_ok=True)
    cloud.hosts.environment["PATH"] = str(folder)


def once_made(happen: Callable[[FakeGoogle], object]) -> Callable:
    """Run `happen` once a machine's request is granted."""

    def inject(cloud: FakeGoogle) -> Callable[[Call, Moment], None]:
        def watch(call: Call, moment: Moment) -> None:
            if call.name in CREATES.values() and moment == "after":
                happen(cloud)

        return watch

    return inject


def stop(cloud: FakeGoogle) -> None:
    for one in cloud.world.table(TABLES["gce"]).values():
        one["status"] = "TERMINATED"


def slow(cloud: FakeGoogle) -> None:
    cloud.compute.slow = 4


def unreachable(cloud: FakeGoogle) -> None:
    cloud.tpu.unreachable.add("us-west4-a")
    cloud.compute.unreachable.add("us-west4-a")


QUICK = {
    "permission": Case(
        "tpu-api", create_fault("tpu-api", Refused(7, DENIED.format("tpu.queuedResources.create"))), 2,
        (ZONE, "tpu.queuedResources.create", "doctor")),
    "API off": Case(
        "tpu-api", fault("queuedResources.list", Refused(7, DISABLED, "SERVICE_DISABLED")), 2,
        ("has not been used", "doctor")),
    "service account cannot delete": Case(
        "tpu-api", lambda cloud: cloud.project.bindings.clear(), 2,
        (ACCOUNT, "roles/tpu.admin", "add-iam-policy-binding")),
    "a zone does not answer": Case("tpu-api", unreachable, 3, ("us-west4-a", "later")),
}  # fmt: skip

SLOW = {
    "stock-out, tpu-api": Case(
        "tpu-api", create_fault("tpu-api", stockout(ZONE), "inside"), 3, (ZONE, "no more capacity", "--zone")),
    "stock-out, gce": Case(
        "gce", create_fault("gce", Refused(8, POOL, "ZONE_RESOURCE_POOL_EXHAUSTED"), "inside"), 3,
        (ZONE, "does not have enough resources", "--zone")),
    "quota, tpu-api": Case(
        "tpu-api", create_fault("tpu-api", quota("TPUV5sLitepodPerProjectPerZone", ZONE), "inside"), 2,
        (ZONE, "TPUV5sLitepodPerProjectPerZone", "quota")),
    "quota, gce": Case(
        "gce", create_fault("gce", Refused(7, "Quota 'TPUS' exceeded. Limit: 0.0", "quotaExceeded")), 2,
        (ZONE, "'TPUS'", "quota")),
    "permission, gce": Case(
        "gce", create_fault("gce", Refused(7, "Required 'compute.instances.create' permission for 'x'", "forbidden")),
        2, ("compute.instances.create", "doctor")),
    "slow operation": Case("gce", slow, 0, ("ready",), left=True, made=1),
    "preempted while starting, tpu-api": Case("tpu-api", preempt_starting, 3, (ZONE, "PREEMPTED"), made=1),
    "preempted while starting, gce": Case("gce", preempt_starting, 0, ("ready",), left=True, made=2),
    "answer lost, tpu-api": Case(
        "tpu-api", create_fault("tpu-api", None, "after", 1), 0, ("ready",), left=True, made=1),
    "answer lost, gce": Case("gce", create_fault("gce", None, "after", 1), 0, ("ready",), left=True, made=1),
    "503 once": Case("tpu-api", create_fault("tpu-api", UNAVAILABLE, times=1), 0, ("ready",), left=True, made=1),
    "503 though it was done, tpu-api": Case(
        "tpu-api", create_fault("tpu-api", UNAVAILABLE, "after"), 0, ("ready",), left=True, made=1),
    "503 though it was done, gce": Case(
        "gce", create_fault("gce", UNAVAILABLE, "after"), 0, ("ready",), left=True, made=1),
    "503 for ever": Case(
        "tpu-api", create_fault("tpu-api", UNAVAILABLE), 3, (ZONE, "may still appear", "taetpu tpu down box")),
    "gcloud killed, tpu-api": Case("tpu-api", kill_gcloud("tpu-api"), 0, ("no answer", "ready"), left=True, made=1),
    "gcloud killed, gce": Case("gce", kill_gcloud("gce"), 0, ("no answer", "ready"), left=True, made=1),
    "signed out while it starts": Case(
        "tpu-api", once_made(fault("queuedResources.list", Refused(16, "Invalid credentials"))), 2,
        ("Invalid credentials", "box may exist", "taetpu tpu down box"), left=True),
    "a zone does not answer once it is made": Case(
        "tpu-api", once_made(unreachable), 3,
        ("us-west4-a", f"box in {ZONE} still exists and costs money", "taetpu tpu down box"), left=True, made=1),
    "stopped by somebody while it starts": Case(
        "gce", once_made(stop), 2, ("box in", "is stopped (TERMINATED)", "taetpu tpu down box"), left=True, made=1),
    "sshd never starts": Case(
        "tpu-api", lambda cloud: cloud.hosts.deaf.add("box"), 3, ("no connection to box", "was deleted"), made=1),
    "timer cannot start": Case(
        "tpu-api", lambda cloud: cloud.hosts.programs.update({"systemd-run": "exit 1\n"}), 3,
        ("timer cannot start", "was deleted"), made=1),
    "no gcloud on the machine": Case("tpu-api", without_gcloud, 3, ("no gcloud", "was deleted"), made=1),
    "delete refused": Case(
        "", fault("queuedResources.delete", Refused(7, DENIED.format("tpu.queuedResources.delete"))), 2,
        (ZONE, "may cost money", "tpu.queuedResources.delete", "doctor"), left=True, made=1),
    "delete unavailable": Case(
        "", fault("queuedResources.delete", UNAVAILABLE), 3, (ZONE, "may cost money", "taetpu tpu down"),
        left=True, made=1),
    "delete answer lost": Case(
        "", fault("queuedResources.delete", None, "after", 1), 0, ("deleted box",), made=1),
}  # fmt: skip


FREQUENT = (
    "stock-out, tpu-api", "quota, gce", "preempted while starting, tpu-api", "answer lost, tpu-api",
    "gcloud killed, tpu-api", "timer cannot start", "delete refused",
)  # fmt: skip
"""One fault of each type. The others are nightly: each takes many calls of gcloud."""


@pytest.mark.parametrize("name", QUICK)
def test_quick_fault(google: FakeGoogle, name: str) -> None:
    check(google, QUICK[name])


@pytest.mark.parametrize(
    "name", [name if name in FREQUENT else pytest.param(name, marks=pytest.mark.nightly) for name in SLOW]
)
def test_fault(google: FakeGoogle, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAETPU_READY_MINUTES", "0.1")
    if SLOW[name].code == 3:
        monkeypatch.setenv("TAETPU_UNKNOWN_MINUTES", "0.05")
    if "sshd" not in name:
        monkeypatch.setenv("TAETPU_READY_MINUTES", "0.5")
    check(google, SLOW[name])


def check(cloud: FakeGoogle, case: Case) -> None:
    if not case.api:
        done = taetpu(*UP["tpu-api"])
        assert done.returncode == 0, done.stderr
    watch = case.inject(cloud)
    words = UP[case.api] if case.api else DOWN
    log = cloud.bin.parent / "log"
    with log.open("w") as file:
        cloud.started = start(words, stdout=file, stderr=file)
        if watch:
            cloud.world.watch = watch
        code = cloud.started.wait()
    cloud.world.watch = lambda call, moment: None
    said = log.read_text()
    assert code == case.code, said
    assert "Traceback" not in said
    assert not [text for text in case.said if text not in " ".join(said.split())], said
    assert bool(cloud.left()) == case.left, said
    assert len(cloud.hosts.booted) == case.made
    cloud.world.faults.clear()
    cloud.tpu.unreachable.clear()
    cloud.compute.unreachable.clear()
    if case.left:
        assert taetpu(*DOWN).returncode == 0
    assert cloud.left() == []
