"""The startup script on machines of the fake cloud: it deletes the machine at its end and when it is idle."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cloud.commands import ZONE
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.world import Fault, Refused

from taetpu.cloud import host_jobs, lifecycle, startup, zone_rates
from taetpu.cloud.gcloud import use_project
from taetpu.cloud.machine_api import Machine, Spec
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import forget
from taetpu.core import atomic_files
from taetpu.core.chips import parse_slice

pytestmark = pytest.mark.slow

FAST_SLEEP = "exec /bin/sleep 0.2\n"
FAST_DATE = "start={start}; echo $((start + ($(/bin/date +%s%N) - ${{start}}000000000) / 10000000))\n"
"""A clock that runs 100 times as fast from a given second on."""
DATE_UNTIL = "[ -e {file} ] || exec /bin/date +%s\n"
"""The usual clock, until a file exists."""


def make(google: FakeGoogle, settings: Settings, api: str, hours: float = 2.0) -> tuple[Machine, Path]:
    """Return a machine whose timer runs five times a second, and its script's state folder."""
    google.hosts.programs["sleep"] = FAST_SLEEP
    use_project(settings.project)
    tpu = parse_slice("v6e-8")
    spec = Spec("box", tpu, api, "me", hours, zone_rates.runtime_for(tpu, api))
    machine = lifecycle.make(spec, [ZONE], settings, lambda line: None)
    state = google.hosts.vms["box", 0].folder / "state"
    until((state / "ready").exists)
    return machine, state


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("api", ["tpu-api", pytest.param("gce", marks=pytest.mark.nightly)])
def test_it_deletes_its_machine_at_its_end_also_after_a_reboot(
    google: FakeGoogle, settings: Settings, api: str
) -> None:
    _, state = make(google, settings, api)
    end = (state / "expires").read_text()
    assert int(end) == pytest.approx(time.time() + 2 * 3600, abs=30)
    google.hosts.reboot("box")
    until((state / "ready").exists)
    assert (state / "expires").read_text() == end
    time.sleep(1.0)
    assert google.left()
    (state / "expires").write_text(str(int(time.time())))
    until(lambda: not google.left())
    assert ("box", 0) not in google.hosts.vms


def test_a_machine_that_boots_late_ends_when_its_label_says(google: FakeGoogle, settings: Settings) -> None:
    now = int(time.time())
    google.hosts.programs["date"] = f"echo {now + 3 * 3600}\n"
    _, state = make(google, settings, "tpu-api", hours=2.0)
    assert int((state / "expires").read_text()) == pytest.approx(now + 2 * 2.0 * 3600, abs=30)


def test_a_machine_that_cannot_reach_google_is_not_ready(google: FakeGoogle, settings: Settings) -> None:
    google.world.faults.append(Fault("queuedResources.get", Refused(7, "denied"), times=1000))
    google.hosts.programs["sleep"] = FAST_SLEEP
    use_project(settings.project)
    tpu = parse_slice("v6e-8")
    spec = Spec("box", tpu, "tpu-api", "me", 2.0, zone_rates.runtime_for(tpu, "tpu-api"))
    machine = lifecycle.make(spec, [ZONE], settings, lambda line: None)
    with pytest.raises(startup.NotSetUp, match="delete itself; check Cloud NAT"):
        startup.prepare(machine, settings, lambda line: None)


def test_a_delete_that_fails_is_repeated(google: FakeGoogle, settings: Settings) -> None:
    google.world.faults.append(Fault("queuedResources.delete", Refused(13, "internal"), times=2))
    _, state = make(google, settings, "tpu-api")
    (state / "expires").write_text("0")
    until(lambda: not google.left())
    assert [call.name for call in google.world.calls].count("queuedResources.delete") == 3


def test_an_idle_machine_deletes_itself_and_one_with_a_job_does_not(
    google: FakeGoogle, settings: Settings, tmp_path: Path
) -> None:
    running = tmp_path / "running"
    google.hosts.programs["date"] = DATE_UNTIL.format(file=running) + FAST_DATE.format(start=f"$(cat {running})")
    machine, _ = make(google, settings.model_copy(update={"idle_minutes": 20}), "tpu-api", hours=20.0)
    hosts = startup.prepare(machine, settings, lambda line: None)
    name = host_jobs.start(hosts, host_jobs.Request([["/bin/sleep", "30"]]))
    atomic_files.write_file(running, str(int(time.time())).encode(), replace=True)
    began = time.monotonic()
    while time.monotonic() - began < 15:  # 25 minutes by the machine's clock
        assert google.left()
        time.sleep(0.2)
    assert host_jobs.find(hosts, name)[0]["state"] == "running"
    forget("box", settings.project)  # a connection that is kept open counts as a login
    until(lambda: not google.left())


@pytest.mark.nightly
def test_without_an_idle_limit_only_the_end_counts(google: FakeGoogle, settings: Settings) -> None:
    google.hosts.programs["date"] = FAST_DATE.format(start=int(time.time()))
    make(google, settings.model_copy(update={"idle_minutes": 0}), "tpu-api", hours=0.5)
    time.sleep(6.0)
    assert google.left()
    until(lambda: not google.left())


@pytest.mark.parametrize("api", ["tpu-api", "gce"])
def test_the_script_has_valid_values_for_every_name(settings: Settings, api: str) -> None:
    spec = Spec("box", parse_slice("v6e-8"), api, "me", 0.1, "r")
    script = startup.startup_script(spec, ZONE, settings)
    assert script.startswith("#!/bin/bash\nname=box\n")
    assert "minutes=6\n" in script
    assert len(script.splitlines()) < 100
