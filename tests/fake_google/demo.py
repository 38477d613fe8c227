"""The walkthrough of the cloud commands against the fake Google Cloud: `python -m tests.fake_google.demo`.

gcloud, ssh and rsync are the real ones; nothing reaches Google and nothing is paid for.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fake_google.cloud import running

SCRIPT = Path(__file__).parents[2] / "examples" / "cloud_walkthrough.sh"
PROGRAM = '#!/bin/sh\nexec "{python}" -m taetpu "$@"\n'
OURS = ("TAETPU_", "CLOUDSDK_", "GOOGLE_", "JAX_", "XLA_")
"""Prefixes of this shell's variables that would affect the walkthrough."""


def main(script: Path = SCRIPT) -> int:
    """Run the walkthrough, print what it left in the fake, and return an exit code."""
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="taetpu-demo-") as folder, running(Path(folder) / "google") as cloud:
        (cloud.bin / "taetpu").write_text(PROGRAM.format(python=sys.executable))
        (cloud.bin / "taetpu").chmod(0o755)
        home = Path(folder) / "my-project"
        home.mkdir()
        own = {"HOME": folder, "TAETPU_OWNER": "me", "XDG_STATE_HOME": f"{folder}/state"}
        environment = os.environ | cloud.environment() | own
        code = subprocess.run(["bash", script], cwd=home, env=environment, check=False).returncode
        left = [*cloud.world.left(), *(f"running host: {name} {worker}" for name, worker in cloud.hosts.vms)]
    print(f"\nleft in the fake: {', '.join(left) or 'nothing'}")
    if code:
        print(f"the walkthrough failed with exit code {code}", file=sys.stderr)
    return code or (1 if left else 0)


if __name__ == "__main__":
    sys.exit(main())
