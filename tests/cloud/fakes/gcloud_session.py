"""Run by itself in a network of its own: a fake cloud, and what gcloud says to it, as JSON on the standard output."""

import json
import os
import subprocess
import sys

from tests.cloud.tpu_faces import ZONE, cloud

STATE = ["queued-resources", "describe", "q1", f"--zone={ZONE}", "--format=value(state.state)"]
COMMANDS = {
    "types": ["tpu-vm", "accelerator-types", "list", f"--zone={ZONE}", "--format=value(type)"],
    "versions": ["tpu-vm", "versions", "list", f"--zone={ZONE}", "--format=value(version)"],
    "create": ["tpu-vm", "create", "n1", f"--zone={ZONE}", "--accelerator-type=v6e-16", "--version=v2-alpha-tpuv6e",
               "--spot", "--labels=team=a", "--format=json"],
    "queue": ["queued-resources", "create", "q1", f"--zone={ZONE}", "--node-id=n2", "--accelerator-type=v6e-8",
              "--runtime-version=v2-alpha-tpuv6e", "--format=json"],
    "nodes": ["tpu-vm", "list", f"--zone={ZONE}", "--format=json"],
    "requests": ["queued-resources", "list", f"--zone={ZONE}", "--format=json"],
    "everywhere": ["queued-resources", "list", "--zone=-", "--format=value(name.basename())"],
    "wrong": ["tpu-vm", "create", "n3", f"--zone={ZONE}", "--accelerator-type=v4-8", "--version=v2-alpha-tpuv6e"],
    "delete": ["tpu-vm", "delete", "n1", f"--zone={ZONE}", "--quiet"],
    **dict.fromkeys(("waits", "provisions", "still", "runs", "taken"), STATE),
    "reset": ["queued-resources", "reset", "q1", f"--zone={ZONE}"],
    "again": STATE,
    "unqueue": ["queued-resources", "delete", "q1", f"--zone={ZONE}", "--quiet", "--force"],
}  # fmt: skip


def main(config: str) -> None:
    told = {}
    with cloud("rest") as place:
        own = {
            "CLOUDSDK_CONFIG": config,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_PROJECT": place.world.project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{place.address}/",
        }
        for name, command in COMMANDS.items():
            if name == "taken":
                place.tpu.preempt("n2")
            ran = subprocess.run(
                ["gcloud", "compute", "tpus", *command],
                env=os.environ | own,
                check=False,
                capture_output=True,
                text=True,
            )
            told[name] = {"rc": ran.returncode, "out": ran.stdout, "err": ran.stderr}
        told["left"] = place.world.left()
        told["changes"] = place.changes()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
