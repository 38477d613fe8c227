"""Google's own linter accepts every gcloud line that taetpu runs or prints."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cloud.lines import Recorder, call_sites, written_lines

from taetpu.cloud import (
    bucket,
    container_image,
    deletion_rights,
    doctor,
    gcloud,
    lifecycle,
    machine_api,
    ssh,
    zone_rates,
)
from taetpu.cloud.machine_api import Machine, Spec, Worker
from taetpu.cloud.settings import Settings
from taetpu.core.chips import generations, parse_slice

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")]

ZONE, ACCOUNT = "us-east5-b", "trainer@my-project.iam.gserviceaccount.com"
SETTINGS = Settings(
    project="my-project",
    owner="me",
    bucket="my-bucket",
    zones=(ZONE,),
    secrets=("A=b",),
    image="us-docker.pkg.dev/p/taetpu/lab:1",
)
OPTIONS = (
    {}, {"spot": True}, {"reservation": "mine"}, {"service_account": ACCOUNT}, {"subnetwork": "sub"},
    {"external_ip": True}, {"study": "widths"}, {"network": "other"},
)  # fmt: skip
OPEN = {"name": "open", "network": "n/default", "direction": "INGRESS", "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "tcp"}]}  # fmt: skip


def lint(lines: list[str], folder: Path) -> list[dict]:
    """Return the linter's output for lines; its exit code is always 0."""
    file = folder / "lines.json"
    file.write_text(json.dumps([{"command_string": line} for line in lines]))
    words = ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def check(lines: list[str], folder: Path) -> None:
    told = lint(lines, folder)
    assert len(told) == len(set(lines))
    assert not [(one["command_string"], one["error_message"]) for one in told if not one["success"]]


def test_a_wrong_line_fails(tmp_path: Path) -> None:
    wrong = ["gcloud compute instances create box --zonee=us-east5-b", "gcloud compute tpus make box"]
    assert [one["success"] for one in lint(wrong, tmp_path)] == [False, False]
    with pytest.raises(AssertionError, match="zonee"):
        check(["gcloud compute instances list", *wrong], tmp_path)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Record the commands that are built, without running them."""
    made = Recorder(gcloud.command)
    for name, module in list(sys.modules.items()):
        if name.startswith("taetpu.") and getattr(module, "command", None) is made.real:
            monkeypatch.setattr(module, "command", made)
    monkeypatch.setattr(doctor, "read", lambda line: [])
    monkeypatch.setattr(container_image, "read", lambda line: [])
    monkeypatch.setattr(bucket, "read", lambda line: [])
    for module in (lifecycle, deletion_rights):
        monkeypatch.setattr(module, "read", lambda line: {"projectNumber": "123"} if "describe" in line.words else [])
    monkeypatch.setattr(gcloud, "read", lambda line: None)
    return made


def build_all(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Build every command with every option."""
    for chip in generations():
        tpu = next(one for one in chip.slices() if one.hosts == 1)
        build_for(Spec("box", tpu, zone_rates.api_for(tpu), "me", 4.0, "some-image"), folder, {})
    for api in ("gce", "tpu-api"):
        build_for(Spec("box", parse_slice("v6e-8"), api, "me", 4.0, "some-image"), folder, *OPTIONS)
    machine = Machine("box", ZONE, "gce", "t", "ready", "", {})
    for one in (machine, replace(machine, api="tpu-api"), replace(machine, api="tpu-api", has_request=True)):
        machine_api.delete_command(one)
    for place in ("-", ZONE):
        machine_api.list_commands(place)
    machine_api.attributes_command(machine)
    ssh.tunnel_command(Worker("10.0.0.2", instance="t1v-n-1-w-0"), ZONE, "my-project")
    bucket.create_command("my-bucket", "us-east5")
    bucket.label_command("my-bucket", "me")
    bucket.delete_command("my-bucket")
    bucket.grant_command("my-bucket", ACCOUNT)
    bucket.describe("my-bucket")
    bucket.objects_command("my-bucket")
    bucket.policy_command("my-bucket")
    container_image.repository_commands(SETTINGS)
    container_image.list_images(SETTINGS)
    container_image.build_command(SETTINGS, folder, "lab", "0123")
    container_image.delete_command("us-docker.pkg.dev/p/taetpu/lab:1")
    deletion_rights.policy_command("my-project", ACCOUNT)
    deletion_rights.grant_command("my-project", ACCOUNT)
    deletion_rights.role_permissions("projects/my-project/roles/deleter")
    deletion_rights.role_permissions("organizations/123/roles/deleter")
    deletion_rights.default_account("my-project")
    assert [one.status for one in doctor.run_checks(SETTINGS, folder)]
    monkeypatch.setattr(doctor, "read", lambda line: [{"account": "me"}])
    doctor.check_account(SETTINGS)
    monkeypatch.setattr(doctor, "read", lambda line: [OPEN])
    assert doctor.check_firewall(SETTINGS).status == "warning"


def build_for(spec: Spec, folder: Path, *options: dict) -> None:
    for changed in options:
        machine_api.create_command(replace(spec, **changed), ZONE, folder / "startup.sh", "ssh-ed25519 AAAA taetpu")
    lifecycle.operation_command("delete", spec.name, ZONE)


def test_lines_that_the_code_builds(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build_all(monkeypatch, tmp_path)
    assert recorder.missed(call_sites()) == []
    assert len(recorder.lines) > 50
    check(list(recorder.lines), tmp_path)


def test_lines_in_scripts_messages_and_docs(tmp_path: Path) -> None:
    found = list(written_lines())
    files = {where for where, _ in found}
    assert {"cloud/startup.sh", "cloud/startup.py", "cloud/agent.py", "cloud/gcloud.py", "cloud/doctor.py"} <= files
    check(list(dict.fromkeys(line for _, line in found)), tmp_path)
