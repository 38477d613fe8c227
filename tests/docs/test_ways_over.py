"""docs/from-*.md: the middle column of every table is true, and every setting of the older systems has a row."""

import importlib
import re
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML
from tests.docs.test_how_do_i_page import parse
from tests.small import TINY

import taetpu
from taetpu.core.errors import UserError
from taetpu.interop.configs import lm_springboard
from taetpu.interop.configs.study import translate_config
from taetpu.lens.opened import OpenedModel
from taetpu.spec.field_paths import find_fields
from taetpu.spec.loading import load_study

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / f"docs/from-{name}.md").read_text() for name in ("lm-springboard", "taetpu")}
OPENED = "taetpu.open_run(...)"
BASE = """\
study: here
base:
  task: {kind: text, source: python-docs, tokenizer: {kind: char}, seq_len: 64, test: 0.1}
  model: {dim: 64, num_layers: 3, mixer: {kind: attention, num_heads: 4}, norm: rms, ffn: swiglu, embedding: untied}
  train: {steps: 200, batch_size: 8, optimizer: {kind: adamw, lr: 2e-3}, schedule: {kind: wsd, warmup: 2}}
seeds: 2
measure: {primary: test/loss, direction: min}
"""
ARMS = {"wide": {"model.dim": 128}}


def rows(page: str) -> list[tuple[str, str, str]]:
    """Return the section and the first two cells of each row of the tables with the heads `there` and `here`."""
    found, section = [], ""
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        section = part.partition("\n")[0]
        for table in re.findall(r"^\| there \| here \|.*\n\|[-|]*\n((?:\|.*\n)*)", part, re.MULTILINE):
            found += [(section, *map(str.strip, line.split("|")[1:3])) for line in table.splitlines()]
    return found


ROWS = [(name, *row) for name, page in PAGES.items() for row in rows(page)]
CLAIMS = sorted({claim for _, _, _, here in ROWS for claim in re.findall(r"`([^`]+)`", here)})


def safe(text: str):
    return YAML(typ="safe", pure=True).load(text)


def check(claim: str) -> None:
    """Raise an error unless a command, setting, field, Python name or file exists."""
    if claim.startswith("taetpu "):
        parse(claim)
    elif claim.startswith(OPENED):
        assert all(hasattr(OpenedModel, name) for name in filter(None, claim.removeprefix(OPENED).split(".")))
    elif claim.startswith("taetpu.") and claim != "taetpu.toml":
        home, _, name = claim.rpartition(".")
        assert hasattr(taetpu if home == "taetpu" else importlib.import_module(home), name)
    elif claim.startswith(("examples/", "docs/")):
        assert (ROOT / claim).exists()
    elif re.match(r"[\w.]+: ", claim):
        load_with(safe(claim))
    elif re.fullmatch(r"(task|model|train|measure)\.[\w.]+|match|ladder", claim):
        assert find_fields(claim)
    else:
        assert claim.startswith(("STUDY/", "taetpu.toml", "TAETPU_")), f"unknown kind of claim: {claim}"


def load_with(change: dict) -> object:
    """Load a study of texts, or of copying, with a setting as by `--set`, or with a key of the study file."""
    (key,) = change
    text = safe(BASE)
    copying = {**text, "base": {**text["base"], "task": {"kind": "copy", "seq_len": 64, "max_length": 8}}}
    for data in (text, copying):
        try:
            return load_study(data, change) if "." in key else load_study({**data, "arms": ARMS, **change})
        except UserError as error:
            refused = error
    raise refused


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_row_names_exists(claim):
    check(claim)


@pytest.mark.parametrize(
    "claim",
    [
        "taetpu runs A.yaml",
        "taetpu run A.yaml --sett a=1",
        "taetpu.open_runs",
        "taetpu.open_run(...).weight",
        "train.optimiser.lr",
        "model.position: learnt",
        "seed: 3",
        "examples/plugins/none.py",
        "results.json",
    ],
)
def test_a_false_row_would_be_noticed(claim):
    with pytest.raises((AssertionError, UserError, typer.TyperException)):
        check(claim)


def named(page: str, section: str = "") -> set[str]:
    """Return the names in the first cells of a section's rows, or of all rows."""
    cells = [there for name, title, there, _ in ROWS if name == page and section in ("", title)]
    return {word for cell in cells for quoted in re.findall(r"`([^`]+)`", cell) for word in quoted.split()}


@pytest.mark.parametrize("section", lm_springboard.SECTIONS)
def test_every_setting_of_lm_springboard_has_a_row(section):
    assert named("lm-springboard", section) == lm_springboard.DEFAULTS[section].keys()


def test_every_task_and_option_of_lm_springboard_has_a_row():
    options = {f"--{name}" for name in ("config", "task", "wandb-proj-name", "wandb-run-note", "save", "save-stats",
               "ablate", "no-wandb", "gpu-id", "return-things", "keep-datamodule", "random_seed")}  # fmt: skip
    assert named("lm-springboard") >= lm_springboard.TASKS.keys() | options


def test_every_row_has_a_counterpart_or_a_reason():
    for page in PAGES.values():
        for line in page.splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) == 3 and cells[1] == "none":
                assert cells[2], line


def test_the_config_on_the_page_gives_the_study_on_the_page(tmp_path):
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGES["lm-springboard"], re.MULTILINE | re.DOTALL)
    config = next(block for block in blocks if block.startswith("# small-copy.txt"))
    shown = safe(next(block for block in blocks if block.startswith("study: small-copy")))
    (tmp_path / "small-copy.txt").write_text(config)
    (study,) = translate_config(tmp_path / "small-copy.txt")

    def contains(whole, part):
        if not isinstance(part, dict):
            assert whole == part
            return
        for key, value in part.items():
            contains(whole[key], value)

    contains(study.data, shown)


@pytest.mark.slow
def test_files_of_a_study_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat saw the dog, and the dog saw the cat.\n" * 20)
    study = safe(TINY)
    study["base"]["task"] = {"kind": "text", "source": "text.txt", "tokenizer": {"kind": "char"}, "seq_len": 8}
    taetpu.run({**study, "seeds": 1}, root="runs")
    files = [claim.removeprefix("STUDY/") for claim in CLAIMS if claim.startswith("STUDY/")]
    assert files
    for pattern in files:
        assert [*(tmp_path / "runs/tiny").glob(pattern)], pattern
