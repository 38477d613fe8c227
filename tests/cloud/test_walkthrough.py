"""examples/cloud_walkthrough.sh, as README gives it: it ends well, in its own folder, and nothing is left."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cloud.machines import skip_without_machines

SCRIPT = Path(__file__).parents[2] / "examples/cloud_walkthrough.sh"


@pytest.mark.slow
def test_the_walkthrough_goes_from_zones_to_teardown(tmp_path):
    skip_without_machines()
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TAETPU_BUCKET": "somebody-elses"}
    words = [sys.executable, "-m", "taetpu", "dev", "fake-cloud", "--", "bash", str(SCRIPT)]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=570
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert done.stdout.endswith("\n$ taetpu dev left\nnothing is left in the fake cloud\n")
    assert done.stderr.endswith("\nnothing is left in the fake cloud\n")
    assert said.count("asking for v5litepod-8 (spot) in us-west4-a") == 2, "it was preempted"
    assert re.search(r"going on from step [246]00", said), "what was done before was not lost"
    assert "walkthrough" not in "".join(str(path) for path in tmp_path.glob("taetpu-walk*")), "its folder is gone"


def test_without_a_fake_cloud_it_refuses():
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TAETPU_FAKE")}
    done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"no fake cloud runs here: taetpu dev fake-cloud -- bash {SCRIPT}\n"
