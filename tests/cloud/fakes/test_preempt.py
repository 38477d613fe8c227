"""`taetpu dev preempt`: a machine of the fake cloud is taken back, with notice or without."""

import threading

import pytest
from tests.cli.test_remote import taetpu
from tests.cloud.machines import until

from taetpu.cloud.fakes.everything import FakeCloud

KINDS = [("v5e-8", "tpu-api", 1), ("v6e-8", "gce", 1), ("v6e-16", "gce", 4)]


def told(fake: FakeCloud) -> set[str]:
    """What the machines' metadata say of their preemption."""
    return {vm.metadata.entries["instance/preempted"] for vm in fake.hosts.vms.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "backend", "hosts"), KINDS)
def test_a_machine_is_told_before_it_is_taken(fake: FakeCloud, kind: str, backend: str, hosts: int):
    words = ("tpu", "up", "t", "--type", kind, "--backend", backend, "--spot", "--yes")
    taetpu(*words)
    assert (len(fake.hosts.vms), told(fake)) == (hosts, {"FALSE"})
    taetpu("dev", "preempt", "t", "--notice", "5")
    assert (len(fake.hosts.vms), told(fake)) == (hosts, {"TRUE"}), "it is there yet"
    until(lambda: len(fake.hosts.vms) < hosts)
    taetpu(*words)
    assert (len(fake.hosts.vms), told(fake)) == (hosts, {"FALSE"}), "another one"
    taetpu("dev", "preempt", "t")
    assert len(fake.hosts.vms) < hosts
    taetpu("tpu", "down", "t", "--yes")
    assert "there is no machine 't'" in taetpu("dev", "preempt", "t", code=2).stderr


@pytest.mark.slow
def test_a_machine_made_meanwhile_is_not_taken(fake: FakeCloud):
    words = ("tpu", "up", "t", "--type", "v6e-8", "--spot", "--yes")
    taetpu(*words)
    (first,) = fake.hosts.vms.values()
    fake.preempt("t", notice=3.0)
    (notice,) = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    taetpu("tpu", "down", "t", "--yes")
    taetpu(*words)
    (second,) = fake.hosts.vms.values()
    assert second is not first
    notice.join()
    assert list(fake.hosts.vms.values()) == [second]
