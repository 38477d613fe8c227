"""State read from Google: listings with unreachable zones, host names, expired machines, sizes."""

import fcntl
import json
import subprocess
import time
from dataclasses import replace

import pytest
from tests.cloud.commands import DOWN, ZONE, start, succeed, taetpu
from tests.fake_google.cloud import FakeGoogle

from taetpu.cloud import bucket, gcloud, lifecycle, machine_api, names_and_labels, supervise, zone_rates
from taetpu.cloud.gcloud import CloudError, OutcomeUnknown, command
from taetpu.cloud.machine_api import Machine, Spec
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import Hosts
from taetpu.core.chips import parse_slice
from taetpu.store import gcs_client

FAR = "us-west4-a"


def silent(line: str) -> None:
    pass


def make(
    settings: Settings, api: str = "tpu-api", kind: str = "v6e-8", name: str = "box", owner: str = "me"
) -> Machine:
    gcloud.use_project(settings.project)
    tpu = parse_slice(kind)
    return lifecycle.make(Spec(name, tpu, api, owner, 1.0, zone_rates.runtime_for(tpu, api)), [ZONE], settings, silent)


@pytest.mark.parametrize("api", ["tpu-api", pytest.param("gce", marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_zones_that_do_not_answer_are_not_taken_for_empty(google: FakeGoogle, settings: Settings, api: str) -> None:
    make(settings, api)
    service = google.tpu if api == "tpu-api" else google.compute
    service.unreachable.add(FAR)
    listed = taetpu("tpu", "list", "--json")
    assert listed.returncode == 3
    assert [one["name"] for one in json.loads(listed.stdout)] == ["box"]
    assert FAR in listed.stderr
    service.unreachable.add(ZONE)
    for words in (("tpu", "list"), ("tpu", "gc", "--yes"), DOWN):
        done = taetpu(*words)
        assert done.returncode == 3
        assert ZONE in done.stderr
        assert "may cost money" in " ".join(done.stderr.split())
    assert google.left()
    with pytest.raises(OutcomeUnknown, match=ZONE):
        machine_api.find("box")
    service.unreachable = {FAR}
    assert taetpu(*DOWN).returncode == 3
    assert google.left() == []


@pytest.mark.slow
def test_hosts_are_reached_by_the_names_that_they_report(google: FakeGoogle, settings: Settings) -> None:
    machine = make(settings, kind="v4-16")
    assert [worker.instance for worker in machine.workers] == ["", ""]
    hosts = Hosts.configure(machine, settings.user, settings.project)
    assert [worker.instance for worker in hosts.workers] == ["t1v-n-box-w-0", "t1v-n-box-w-1"]
    assert "start-iap-tunnel t1v-n-box-w-1 22" in (hosts.folder / "config").read_text()
    folders = [hosts.run(number, ["pwd"]).out.strip() for number in hosts.all]
    assert folders == [str(google.hosts.vms["box", number].home) for number in (0, 1)]
    assert Hosts.load("box", settings.project) == hosts


@pytest.mark.slow
def test_gc_deletes_expired_machines_of_the_owner_alone(google: FakeGoogle, settings: Settings) -> None:
    for name, owner in (("old", "me"), ("new", "me"), ("theirs", "somebody")):
        make(settings, name=name, owner=owner)
    for kind in ("tpu.queuedResources", "tpu.nodes"):
        for key, one in google.world.table(kind).items():
            node = one["tpu"]["nodeSpec"][0]["node"] if kind.endswith("Resources") else one
            if not key.endswith("/new"):
                node["labels"][names_and_labels.EXPIRES] = str(int(time.time()) - 60)
    shown = succeed("tpu", "gc", "--dry-run")
    assert "delete old " in shown
    assert "theirs" not in shown
    assert len(google.left()) == 6
    succeed("tpu", "gc", "--yes")
    assert {line.rpartition("/")[2] for line in google.left()} == {"new", "theirs"}
    refused = taetpu("tpu", "down", "theirs", "--yes")
    assert refused.returncode == 2
    assert "somebody" in refused.stderr
    assert len(google.left()) == 4


@pytest.mark.slow
def test_the_outcome_of_an_unanswered_change_is_read(
    google: FakeGoogle, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcloud, "CHANGE_LIMIT", 3.0)
    slept: list[str] = []

    def watch(call, moment) -> None:
        if call.name == "queuedResources.create" and moment == "after" and not slept:
            slept.append(call.name)
            google.world.lock.release()
            time.sleep(4.0)
            google.world.lock.acquire()

    google.world.watch = watch
    said: list[str] = []
    gcloud.use_project(settings.project)
    tpu = parse_slice("v5e-8")
    spec = Spec("box", tpu, "tpu-api", "me", 1.0, zone_rates.runtime_for(tpu, "tpu-api"))
    machine = lifecycle.make(spec, [ZONE], settings, said.append)
    assert machine.state == "ready"
    assert google.hosts.booted == ["box"]
    assert any("no answer" in line for line in said)
    creates = [call.name for call in google.world.calls].count("queuedResources.create")
    assert creates == 1


@pytest.mark.slow
def test_the_size_of_a_bucket(google: FakeGoogle, settings: Settings) -> None:
    gcloud.use_project(settings.project)
    assert bucket.usage("studies") == 0
    for number in range(3):
        gcs_client.storage_client().bucket("studies").blob(f"root/{number}/x").upload_from_string("x" * 10)
    assert bucket.usage("studies") == 30


@pytest.mark.nightly
def test_the_users_configuration_does_not_hide_zones_or_messages(
    google: FakeGoogle, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcloud.use_project(settings.project)
    monkeypatch.setenv("CLOUDSDK_CORE_VERBOSITY", "none")
    monkeypatch.setenv("CLOUDSDK_CORE_USER_OUTPUT_ENABLED", "false")
    google.tpu.unreachable.add(FAR)
    found, missing = gcloud.list_resources(machine_api.list_commands(api="tpu-api")[0])
    assert (found, missing) == ([], [FAR])
    with pytest.raises(gcloud.CloudError, match="unavailable"):
        gcloud.read(machine_api.list_commands(FAR, "tpu-api")[0])


def test_a_command_has_a_time_limit(google: FakeGoogle) -> None:
    with pytest.raises(OutcomeUnknown, match=r"0\.05 s"):
        gcloud.run(command("compute", "tpus", "locations", "list"), 0.05)


FAMILIES = {
    "NoCapacity": 'There is no more capacity in the zone "us-east5-b"; you can try in another zone',
    "NoQuota": "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-east5-b.",
    "NotAllowed": "PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on resource",
    "OutcomeUnknown": "HTTPError 503: The service is currently unavailable.",
    "CloudError": "INVALID_ARGUMENT: invalid runtime version",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_failures_keep_googles_message_whole(family: str) -> None:
    message = f"ERROR: (gcloud.x) {FAMILIES[family]}{' more' * 1000} end"
    log = f"==== request start ====\nuri: /quota/PERMISSION_DENIED\n{message}"
    error = gcloud.failure(command("compute", "tpus", "list", zone="z"), 1, log)
    assert type(error).__name__ == family
    assert "`gcloud compute tpus list --zone=z`" in error.problem
    assert message in str(error)
    assert "request start" not in str(error)


@pytest.mark.slow
def test_lost_machines_of_other_owners_are_kept(google: FakeGoogle, settings: Settings) -> None:
    make(settings, owner="somebody")
    google.preempt("box")
    before = google.left()
    with pytest.raises(gcloud.CloudError, match="belongs to somebody"):
        make(settings)
    assert google.left() == before


@pytest.mark.slow
def test_two_commands_at_once_make_one_machine(google: FakeGoogle) -> None:
    words = ("tpu", "up", "box", "--type", "v5e-8", "--yes", "--zone")
    both = [start((*words, zone), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for zone in (ZONE, FAR)]
    printed = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], printed
    assert google.hosts.booted == ["box"]
    assert any("waiting for another" in one for one in printed)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["tpu-api", pytest.param("gce", marks=pytest.mark.nightly)])
def test_two_computers_at_once_keep_the_machine_requested_first(
    google: FakeGoogle, settings: Settings, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    first = make(settings, api)
    tpu = parse_slice("v6e-8")
    spec = Spec("box", tpu, first.api, "me", 1.0, zone_rates.runtime_for(tpu, first.api))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "find_existing", lambda spec: None)  # asked before the other's machine was listed
        time.sleep(1.1)  # requests have the time in seconds
        kept = lifecycle.make(spec, [FAR], settings, silent)
    assert kept.zone == ZONE
    assert [one.zone for one in machine_api.find("box")] == [ZONE]


@pytest.mark.slow
@pytest.mark.parametrize("api", ["tpu-api", pytest.param("gce", marks=pytest.mark.nightly)])
def test_deleted_and_preempted_machines_are_distinguished(google: FakeGoogle, settings: Settings, api: str) -> None:
    def loss(machine: Machine) -> str:
        return supervise.find_loss_reason(machine, float("inf"), settings)

    machine = make(settings, api)
    assert loss(machine) == ""
    google.preempt("box")
    assert loss(machine)
    again = make(settings, api)  # which deletes what is left of the first
    assert loss(again) == ""
    lifecycle.down("box", "me", settings, silent)
    with pytest.raises(CloudError, match="deleted by me@example.org" if api == "gce" else "deleted by somebody"):
        loss(again)
    if api == "tpu-api":
        over = {**again.labels, names_and_labels.EXPIRES: str(int(time.time()) - 1)}
        with pytest.raises(CloudError, match="by its timer"):
            loss(replace(again, labels=over))
        return
    google.compute.user = "system"
    assert make(settings, api)
    lifecycle.down("box", "me", settings, silent)
    assert "no longer exists" in loss(again)


@pytest.mark.nightly
def test_several_machines_with_one_name_are_reported(
    google: FakeGoogle, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(settings)
    tpu = parse_slice("v6e-8")
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "find_existing", lambda spec: None)
        patch.setattr(lifecycle, "keep_first", lambda made, settings, tell: made)
        lifecycle.make(
            Spec("box", tpu, "tpu-api", "me", 1.0, zone_rates.runtime_for(tpu, "tpu-api")), [FAR], settings, silent
        )
    for words in (("tpu", "up", "box", "--type", "v6e-8", "--api", "tpu-api", "--yes"), ("tpu", "status", "box")):
        done = taetpu(*words)
        assert done.returncode == 2, done.stdout
        for part in (ZONE, FAR, "taetpu tpu down box"):
            assert part in " ".join(done.stderr.split())
    assert taetpu(*DOWN).returncode == 0
    assert google.left() == []


@pytest.mark.slow
def test_commands_wait_for_gcloud_of_a_killed_process(google: FakeGoogle, settings: Settings) -> None:
    gcloud.use_project(settings.project)
    said: list[str] = []
    with lifecycle.name_lock("box", fcntl.LOCK_SH) as held:
        stray = subprocess.Popen(["sleep", "1.5"], pass_fds=(held,), start_new_session=True)
    began = time.monotonic()
    assert lifecycle.down("box", "me", settings, said.append) == []
    assert time.monotonic() - began > 1.4
    assert stray.wait() == 0
    assert any("box" in line for line in said)
