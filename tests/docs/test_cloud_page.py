"""docs/cloud.md agrees with the code, and its commands run in order against the fake Google Cloud."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import commands
from tests.small import TINY

from taetpu.cli.cloud_common import LONGEST_HOURS, SHORTEST_HOURS
from taetpu.cloud.container_image import BUILD_MINUTES, BUILD_RATE
from taetpu.cloud.deletion_rights import DELETERS
from taetpu.cloud.doctor import APIS
from taetpu.cloud.settings import Settings
from taetpu.cloud.supervise import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "cloud.md").read_text()
NOT_HERE = ("tpu run sh", "image build", "dev sync --watch", "status gs://")
"""Commands that install PyTorch, need Cloud Build, never end, or need a study that was trained."""
TRAINS = "taetpu run study.yaml --on tpu --type v6e-8 --spot --max-usd 20"
"""Tested with preemptions elsewhere; here only with --dry-run."""


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 250


def test_settings_and_limits_match_the_code():
    text = " ".join(PAGE.split())
    assert [name for name in Settings.model_fields if not re.search(rf"`{name}`|^{name} = ", PAGE, re.M)] == []
    defaults = Settings()
    assert f"`max_hours` ({defaults.max_hours:g}), `idle_minutes` ({defaults.idle_minutes})" in text
    assert f"`--max-hours`, {SHORTEST_HOURS:g} to {LONGEST_HOURS:g}" in text
    limits = Limits(1.0)
    assert f"{limits.losses} lost machines" in text
    assert "three in a" in text
    assert (limits.idle, limits.patience) == (3, 12)
    assert f"at most ${BUILD_MINUTES * BUILD_RATE:.2f}" in text


def test_the_page_grants_the_permissions_of_doctor_and_up():
    enabled = re.search(r"gcloud services enable (.*?) --project", PAGE, re.DOTALL)
    assert set(APIS) <= set(enabled[1].replace("\\", "").split())
    assert f"--role={DELETERS[0]} \\\n  --member=serviceAccount:taetpu-vm" in PAGE


def lines() -> list[str]:
    """The commands of the page's bash blocks, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def agreed(line: str) -> str:
    """A line as it is given where nobody can be asked."""
    words = shlex.split(line)
    command = commands()[words[1]]
    command = command.commands[words[2]] if hasattr(command, "commands") else command
    asks = any("--yes" in option.opts for option in command.params) and "--dry-run" not in words
    return f"{line} --yes" if asks else line


@pytest.mark.nightly
def test_the_commands_run_in_the_order_of_the_page(google, tmp_path):
    folder = tmp_path / "project"
    for name, text in {"study.yaml": TINY + "seeds: 1\n", "hello.py": "print(1)\n", "prepare.py": "print(2)\n"}.items():
        (folder / "models").mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "models" / "one.py").write_text("")
    (folder / "Dockerfile").write_text("FROM python:3.12-slim\n")
    (folder / "taetpu.toml").write_text('[cloud]\nowner = "me"\n')
    given = [line for line in lines() if not line.removeprefix("taetpu ").startswith(NOT_HERE) and line != TRAINS]
    assert len(given) >= 25
    for line in given:
        words = [sys.executable, "-m", "taetpu", *shlex.split(agreed(line))[1:]]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert google.left() == []
