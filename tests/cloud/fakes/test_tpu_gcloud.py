"""gcloud, Google's other client of the Cloud TPU API, gets along with the fake: in a network that has nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ALONE = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
ROOT = Path(__file__).parents[3]


def alone() -> bool:
    """Whether a process may have a network of its own here."""
    needed = all(shutil.which(tool) for tool in ("unshare", "ip"))
    return needed and subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
@pytest.mark.skipif(not alone(), reason="a process may not have a network of its own here (unshare, ip)")
def test_gcloud_makes_lists_and_deletes(tmp_path):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.cloud.fakes.gcloud_session", str(tmp_path)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    failed = {name: one["err"] for name, one in told.items() if isinstance(one, dict) and one["rc"]}
    assert failed.keys() == {"wrong"}, failed
    (node,) = json.loads(told["nodes"]["out"])
    assert (node["name"].rpartition("/")[2], node["state"], node["labels"]) == ("n1", "READY", {"team": "a"})
    assert (len(node["networkEndpoints"]), node["schedulingConfig"]["spot"]) == (4, True)
    (request,) = json.loads(told["requests"]["out"])
    assert request["tpu"]["nodeSpec"][0]["nodeId"] == "n2"
    assert told["everywhere"]["out"].split() == ["q1"]
    assert told["types"]["out"].split() == ["v6e-1", "v6e-8", "v6e-16"]
    assert "v2-alpha-tpuv6e" in told["versions"]["out"].split()
    states = [told[name]["out"].strip() for name in ("waits", "provisions", "runs", "taken", "again")]
    waiting = "WAITING_FOR_RESOURCES"
    assert states == [waiting, "PROVISIONING", "ACTIVE", "SUSPENDED", waiting]
    assert "the accelerator v4-8 was not found in zone us-east5-b" in told["wrong"]["err"]
    assert told["left"] == []
    assert told["changes"] == [
        "CreateNode", "CreateQueuedResource", "CreateNode", "DeleteNode", "ResetQueuedResource", "DeleteQueuedResource",
    ]  # fmt: skip
