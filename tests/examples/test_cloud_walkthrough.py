"""`make cloud-demo`: the walkthrough of the cloud commands through gcloud, against the fake."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fake_google.hosts import executable

CHECKOUT = Path(__file__).parents[2]
CALL = (
    "import sys; from pathlib import Path; from tests.fake_google.demo import main; sys.exit(main(Path(sys.argv[1])))"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("gcloud") and executable("sshd") and shutil.which("rsync")),
        reason="gcloud, OpenSSH's server or rsync is not installed",
    ),
]


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=CHECKOUT, capture_output=True, text=True, check=False)


def test_the_walkthrough_leaves_no_resources():
    done = demo("-m", "tests.fake_google.demo")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("fake: nothing\n")
    assert "Traceback" not in done.stderr
    for verb in ("zones", "up", "list", "status", "sync", "run", "logs", "ssh", "stop", "clean", "cost", "gc", "down"):
        assert f"$ taetpu tpu {verb}" in done.stdout


@pytest.mark.parametrize(
    ("script", "left"),
    [("taetpu bucket create 'kept' --yes\n", "storage.buckets: kept"), ("exit 3\n", "nothing")],
    ids=["left", "failed"],
)
def test_the_walkthrough_fails_if_a_command_fails_or_resources_remain(tmp_path: Path, script: str, left: str):
    (tmp_path / "script.sh").write_text(script)
    done = demo("-c", CALL, str(tmp_path / "script.sh"))
    assert done.returncode != 0
    assert done.stdout.endswith(f"fake: {left}\n")
