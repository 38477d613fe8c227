"""Every line for gcloud that taetpu shows is one that gcloud itself would take: its own checker looks at them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cloud.fakes.test_tpu_gcloud import ALONE, ROOT, alone

from taetpu.cloud import doctor
from taetpu.cloud.clients import SIGN_IN
from taetpu.cloud.doctor.check import offered
from taetpu.cloud.doctor.keys import Found
from taetpu.cloud.fakes.networks import rule
from taetpu.cloud.fakes.projects import disabled
from taetpu.cloud.google_errors import classify
from taetpu.cloud.settings import FILE
from taetpu.cloud.storage import ADMIN, WRITER, Address, _grant
from taetpu.core.errors import UserError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
    pytest.mark.skipif(not alone(), reason="a process may not have a network of its own here (unshare, ip)"),
]


def lint(commands: list[str], folder: Path) -> dict[str, str]:
    """What gcloud finds wrong, by command."""
    file = folder / "commands.json"
    file.write_text(json.dumps([{"command_string": one} for one in commands]))
    own = {
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }
    words = [*ALONE, "gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"]
    ran = subprocess.run(words, env=os.environ | own, check=False, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == len(commands)
    return {one["command_string"]: one["error_message"] for one in found if not one["success"]}


def shown_by_doctor(looked, folder: Path) -> set[str]:
    """The commands for a project where everything is wrong."""
    (folder / FILE).write_text('[cloud]\nproject = "fake-project"\nzones = ["us-east5-b"]\n')
    credentials = folder / "credentials.json"
    credentials.write_text('{"type": "authorized_user"}')
    signed_in = {"GOOGLE_APPLICATION_CREDENTIALS": str(credentials)}
    own = looked.project
    own.services, own.billing = {"compute", "cloudresourcemanager"}, False
    own.lacks = {f"{part}" for part in PERMISSIONS}
    looked.networks.firewalls = {"wide": rule("wide", ["0.0.0.0/0"], "all")}
    looked.networks.translated.clear()
    checks = [*doctor.checks(folder, signed_in, lambda clients: [])]
    looked.networks.reaches_google.clear()
    looked.networks.firewalls.clear()
    own.state = "DELETE_REQUESTED"
    checks += doctor.checks(folder, signed_in, lambda clients: [])
    return {check.command for check in checks}


PERMISSIONS = [one for need in (doctor.project.GCE, doctor.project.TPU_API, doctor.project.TUNNEL,
                                *doctor.project.OTHERS) for one in need.permissions]  # fmt: skip


def test_what_is_shown_for_gcloud_is_what_gcloud_takes(looked, tmp_path):
    shown = shown_by_doctor(looked, tmp_path)
    place = Address("bucket")
    shown |= {
        SIGN_IN,
        Found(tmp_path, "0123", "a@p.iam.gserviceaccount.com").revoke,
        offered(classify(disabled_api())),
        *(offered(UserError("", remedy=_grant(place, role))) for role in (ADMIN, WRITER)),
        "gcloud storage rm gs://bucket --recursive",
        "gcloud compute start-iap-tunnel my-tpu 22 --listen-on-stdin --zone=z --project=p --verbosity=warning",
    }
    lines = [part.strip() for one in shown for part in one.split("&&")]
    commands = sorted({line for line in lines if line.startswith("gcloud ")})
    names = {" ".join(command.split()[1:4]) for command in commands}
    assert {
        "auth application-default login", "auth application-default set-quota-project", "compute firewall-rules create",
        "compute firewall-rules delete", "compute networks subnets", "compute routers create", "compute routers nats",
        "iam service-accounts keys", "projects undelete fake-project", "services enable tpu.googleapis.com",
        "storage buckets add-iam-policy-binding",
    } <= names  # fmt: skip
    assert lint(commands, tmp_path) == {}
    assert "unrecognized arguments" in next(iter(lint(["gcloud projects list --no-such-flag"], tmp_path).values()))


def disabled_api():
    from google.api_core.exceptions import from_grpc_status
    from google.rpc.error_details_pb2 import ErrorInfo

    refused = disabled("tpu")
    info = ErrorInfo(reason=refused.reason, domain="googleapis.com", metadata=refused.facts)
    return from_grpc_status(7, refused.message, details=[info], error_info=info)


def test_what_the_docs_tell_for_gcloud_is_what_gcloud_takes(tmp_path):
    pages = [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = text.replace("\\\n", "")  # a command on several lines
    found = [*re.findall(r"^\s*\$? ?(gcloud [^\n]+)$", text, re.M), *re.findall(r"`(gcloud [^`\n]+)`", text)]
    commands = sorted({SIGN_IN, *(re.split(r" && | \| |  #", one)[0].strip() for one in found if "..." not in one)})
    assert lint(commands, tmp_path) == {}
