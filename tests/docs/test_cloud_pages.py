"""docs/cloud*.md say what the code and its dated tables say, and every command of theirs runs, in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import commands
from tests.cloud.machines import skip_without_machines
from tests.images import DOCKER

from taetpu.cloud import catalogue
from taetpu.cloud.doctor.network import IAP
from taetpu.cloud.doctor.project import GCE, OTHERS, TPU_API, TUNNEL
from taetpu.cloud.fakes.projects import SERVICES
from taetpu.core.chips import Chip, generations

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("cloud", "cloud-tpus", "cloud-machines", "cloud-images")}
MAKERS = {"gce": "Compute Engine", "tpu-api": "Cloud TPU API"}


def table(page: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so: the first cell, and the others."""
    lines = PAGES[page].partition(f"| {head} |")[2].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {first: rest for first, *rest in rows}


def offered(chip: Chip) -> catalogue.Offer:
    return catalogue.offer(chip.slices()[0])


def test_the_table_of_generations_is_that_of_the_code():
    def row(chip: Chip) -> list[str]:
        slices = chip.slices()
        single = [one.name for one in slices if one.hosts == 1]
        dollars = [chip.usd_per_chip_hour(spot) for spot in (False, True)]
        return [
            f"`{slices[0].name}` to `{slices[-1].name}`",
            chip.counts,
            ", ".join([f"`{single[0]}`", *(f"`-{name.rpartition('-')[2]}`" for name in single[1:])]),
            ", or ".join(MAKERS[one] for one in offered(chip).backends),
            f"`{chip.runtime}`" if chip.runtime else "not known",
            ", ".join(f"{usd:.2f}" for usd in dollars if usd) or "no rate",
        ]

    assert table("cloud-tpus", "generation | names") == {chip.name: row(chip) for chip in generations()}


def test_the_table_of_zones_is_the_dated_one():
    def row(chip: Chip) -> list[str]:
        zones = offered(chip).zones
        return [", ".join(zone for zone, source in zones.items() if source == kind) for kind in ("regions", "prices")]

    assert table("cloud-tpus", "generation | in Google's table") == {chip.name: row(chip) for chip in generations()}
    assert f"As Google's table named them on {catalogue.dated()}" in PAGES["cloud-tpus"]
    images = {offered(chip).image for chip in generations()} - {None}
    assert [f"`{image}`" in PAGES["cloud-tpus"] for image in images] == [True]


def test_what_doctor_wants_is_what_the_page_tells_to_grant():
    told = "\n".join(f"{first}{rest}" for first, rest in table("cloud", "to | role").items())
    assert [need.role for need in (GCE, TPU_API, TUNNEL, *OTHERS) if need.role not in told] == []
    enabled = re.search(r"gcloud services enable (.*?) --project", PAGES["cloud"], re.DOTALL)
    assert enabled
    assert {name.removesuffix(".googleapis.com") for name in enabled[1].replace("\\", "").split()} == {*SERVICES}
    assert f"--allow=tcp:22 \\\n  --source-ranges={IAP} --target-tags=taetpu" in PAGES["cloud-machines"]


def lines(page: str) -> list[str]:
    """The commands of a page's bash blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def given(line: str) -> str:
    """A line as nobody who agrees is there to give it, of a study that takes seconds."""
    words = shlex.split(line)
    command = commands()[words[1]]
    command = command.commands[words[2]] if hasattr(command, "commands") else command
    asks = any("--yes" in option.opts for option in command.params) and "--dry-run" not in words
    return f"{line} --yes" if asks else line


STUDY = """
study: quickstart
base:
  task: {kind: copy, seq_len: 16}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 60, batch_size: 8, eval_every: 30, sample: none}
seeds: 1
arms: {no-ffn: {model.ffn: none}}
"""
HELLO = "import sys; print('hello', sys.argv[1:])\n"


def project(folder: Path) -> None:
    """What the pages take to be there."""
    for name, text in {"study.yaml": STUDY, "hello.py": HELLO, "models/other.py": HELLO}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    home = folder.parent / "docker"
    home.mkdir()
    (home / "docker").write_text(DOCKER.format(python=sys.executable, home=str(home)))
    (home / "docker").chmod(0o755)


@pytest.mark.slow
def test_every_command_runs_in_the_pages_order(tmp_path, monkeypatch):
    """The walkthrough has a test of its own; docker is played by a stand-in."""
    skip_without_machines()
    folder = tmp_path / "project"
    folder.mkdir()
    project(folder)
    named = [line for page in ("cloud", "cloud-images", "cloud-machines") for line in lines(page)]
    apart = [line for line in named if not line.startswith("taetpu ") or "walkthrough" in line]
    assert apart == ["pip install 'taetpu[gcp]'", "taetpu dev fake-cloud -- bash examples/cloud_walkthrough.sh"]
    script = ["set -e", *(f"echo '+' {shlex.quote(line)}\n{given(line)}" for line in named if line not in apart)]
    monkeypatch.setenv("PATH", f"{folder.parent / 'docker'}:/usr/sbin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZONES", "REGION", "BUCKET", "IMAGE", "STACK", "BACKEND", "MAX_USD", "ROOT"):
        monkeypatch.delenv(f"TAETPU_{name}", raising=False)
    words = [sys.executable, "-m", "taetpu", "dev", "fake-cloud", "--", "bash", "-c", "\n".join(script)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    last = done.stdout.rpartition("\n+ ")[2]
    assert done.returncode == 0, f"{last}\n{done.stderr[-3000:]}"
    assert done.stdout.count("\n+ ") + 1 == len(named) - len(apart)
