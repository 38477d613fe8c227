"""Every code block of docs/plugins.md works as the page says."""

import re
from pathlib import Path

import pytest

from taetpu.contract.check import check_arms
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import prepare_jax
from taetpu.core.plugins import load_plugins
from taetpu.core.registry import BUILTIN_MODULES
from taetpu.nn.mixer_base import MixerConfig
from taetpu.optim.hooks import METHODS
from taetpu.spec.loading import load_study
from taetpu.study.freeze import analysis_plan
from taetpu.testing import check_component

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {found[1]: text for _, text in BLOCKS if (found := re.match(r"# (\S+\.(?:py|yaml))\n", text))}
PLUGINS = [name for name in FILES if name.endswith(".py")]
STUDIES = [name for name in FILES if name.endswith(".yaml")]
QUICK = ("halving.py", "confidence.py", "smoothed.py", "majority.py")


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    """The files of the page, in the working folder."""
    prepare_jax()
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_code_block_is_tested_below():
    """But for shell commands, which are those of the command's own tests."""
    apart = [text for language, text in BLOCKS if language and text not in FILES.values()]
    assert apart == [SNIPPET]
    assert (len(PLUGINS), len(STUDIES)) == (21, 6)


SNIPPET = next(text for language, text in BLOCKS if language == "python" and text not in FILES.values())


@pytest.mark.slow
def test_the_worked_example_passes_its_checks(capsys):
    exec(SNIPPET, {})
    assert re.search(r"causality +passed", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.nightly) for n in PLUGINS])
def test_each_kind_passes_its_checks(name):
    (plugin,) = load_plugins([Path(name)])
    for kind in plugin.kinds:
        report = check_component(*kind.split("/"))
        assert {finding.outcome for finding in report.findings} <= {"passed", "note"}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_each_study_keeps_the_contract(name):
    study = load_study(name)
    check_arms(study)
    assert len(study.arms) > 1
    assert {plugin.file.name for plugin in study.plugins} <= set(PLUGINS)


@pytest.mark.slow
def test_without_own_init_the_arm_is_refused(page):
    text = FILES["zero_relu.py"]
    (page / "zero_relu.py").write_text(text.replace("own_init = True", "pass"))
    with pytest.raises(UserError, match=r"layers\.0-1\.ffn\.down|layers\.0\.ffn\.down"):
        check_arms(load_study("zero.yaml"))


def test_the_worked_example_rejects_a_width_above_seq_len(page):
    (page / "conv.yaml").write_text(FILES["conv.yaml"].replace("width: 2", "width: 64"))
    with pytest.raises(UserError, match="width=64 exceeds seq_len=32") as caught:
        load_study("conv.yaml")
    assert caught.value.line == FILES["conv.yaml"].splitlines().index("arms:") + 3


def test_the_study_with_a_metric_takes_its_declaration_from_the_file():
    study = load_study("top5.yaml")
    metric = analysis_plan(study).metric()
    assert (study.measure.direction, metric.bounds, metric.title) == (
        "max", (0, 1), "val/top-5 accuracy (share of tokens)",
    )  # fmt: skip


def test_the_tables_name_every_slot_and_every_method_of_a_hook():
    named = {name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    members = {name for name in vars(MixerConfig) if not name.startswith("_")}  # in the table of the base of mixers
    assert named - members == {*BUILTIN_MODULES, *METHODS}
