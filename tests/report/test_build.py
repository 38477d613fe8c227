"""The files of a report: they show the results, load nothing from elsewhere, and escape all text from users."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.report import summary
from taetpu.report.build import build_report
from taetpu.report.chart_files import vega_bundle
from taetpu.report.inputs import read_inputs
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

HOSTILE = "</script><script>alert(1)</script>"


class Page(HTMLParser):
    """Parser that collects tags with their attributes, the text of table cells, and scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link"):
            self.inside.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data) -> None:
        if {"td", "th"} & set(self.inside):
            self.cells[-1] += data
        if "script" in self.inside:
            self.scripts[-1] += data


def page_of(folder: StudyFolder) -> tuple[str, Page]:
    text = Path(build_report(folder)["html"]).read_text()
    return text, Page(text)


@pytest.fixture(scope="module")
def built(study) -> tuple[str, Page]:
    """Return the report of a study, as text and parsed."""
    return page_of(study)


def test_page_shows_the_results(built, results) -> None:
    text, page = built
    cells = [cell.strip() for cell in page.cells]
    for row in summary.verdict_rows(results):
        at = next(i for i, cell in enumerate(cells) if cell.startswith(row.arm))
        assert cells[at + 1 : at + 6] == [row.mean, row.effect, row.interval, row.noise_sd, row.p]
        assert cells[at + 6].endswith(row.verdict)
    data = json.loads(page.scripts[0])
    estimates = [part["data"]["values"] for part in data["charts"]["forest"]["layer"]]
    drawn = next(rows for rows in estimates if "low" in rows[0])
    expected = [(arm["name"], arm["effect"], arm["ci95"], arm["verdict"]) for arm in results["arms"][1:]]
    assert [(row["arm"], row["effect"], [row["low"], row["high"]], row["verdict"]) for row in drawn] == expected
    assert data["verdicts"] == {arm["name"]: summary.verdict_label(arm) for arm in results["arms"]}
    assert "The loop is" in text  # a sample
    assert "<dt>jax</dt><dd>0.10.2</dd>" in text
    assert '<th scope="row">model.mixer.num_heads</th><td>4</td>' in text


def test_page_loads_nothing_from_elsewhere(built) -> None:
    text, page = built
    loading = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert loading
    sources = [value for value in loading if not value.startswith("#")]
    assert {value[1:] for value in loading} - {value[1:] for value in sources} <= ids
    linked = [attrs["href"] for tag, attrs in page.tags if tag == "a" and "rel" in attrs]
    assert sources == linked  # links are followed by readers only, and their targets learn nothing of the report
    assert all(value.startswith("https://") for value in sources)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_policy_allows_only_the_scripts_in_the_page(built) -> None:
    _, page = built
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    running = page.scripts[1:]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in running]
    assert re.findall(r"'sha256-(\S+)'", policy) == digests


def test_all_text_from_users_is_escaped(store_study) -> None:
    name = "<img onerror=x>|`a`*b*"
    folder = store_study({"baseline": ({}, 0.0), name: ({"model.note": HOSTILE}, 0.1)}, sample=HOSTILE)
    text, page = page_of(folder)
    assert HOSTILE not in text
    assert len(page.scripts) == 3
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert any(cell.startswith(name) and HOSTILE in cell for cell in page.cells)
    assert name in json.loads(page.scripts[0])["curves"][0]["arms"]


@pytest.mark.slow
def test_same_results_give_the_same_files(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "gone": ({}, None)})
    first = {name: Path(path).read_bytes() for name, path in build_report(folder).items()}
    assert {name: Path(path).read_bytes() for name, path in build_report(folder).items()} == first


@pytest.mark.slow
def test_figures_are_written_for_every_chart(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "a*b": ({"model.dim": 32}, 0.1)})
    files = sorted(file.name for file in Path(build_report(folder, "svg")["figures"]).iterdir())
    assert {"forest.svg", "val-loss-a-b.svg", "val-loss-difference-a-b.svg", "parameters.svg"} <= set(files)
    with pytest.raises(UserError, match="unknown figure format 'gif'"):
        build_report(folder, "gif")


def test_arm_details_show_changes_and_runs(study, results) -> None:
    parts = {part.name: part for part in read_inputs(study, results).arms}
    assert parts["layernorm"].change.rows == [("model.norm.kind", "rms", "layer")]
    assert ("model.dim", "64") in parts["baseline"].change.rows
    arms = {arm["name"]: arm for arm in results["arms"]}
    for (seed, outcome, value, difference), run in zip(parts["nope"].runs.rows, arms["nope"]["runs"], strict=True):
        base = arms["baseline"]["runs"][run["seed"]]["value"]
        assert (int(seed), outcome) == (run["seed"], "finished")
        assert float(value) == pytest.approx(run["value"], abs=1e-3)
        assert float(difference) == pytest.approx(run["value"] - base, abs=1e-3)
    lost = [row for row in parts["no-norm"].runs.rows if row[1] != "finished"]
    assert [list(row[1:]) for row in lost] == [["diverged at step 13", "-", "-"]] * 2


@pytest.mark.parametrize("arms", [{"baseline": ({}, 0.0)}, {"baseline": ({}, 0.0), "gone": ({}, None)}])
def test_one_seed_gives_a_page_without_nan(store_study, arms) -> None:
    text, _ = page_of(store_study(arms, seeds=1))
    assert "NaN" not in text.split('id="data">')[1].split("</script>")[0]


def test_study_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        build_report(StudyFolder(open_store(tmp_path), "empty"))
    assert "study 'empty' has no results" in str(error.value)
    assert "taetpu run STUDY" in str(error.value)


def test_a_damaged_copy_of_the_chart_scripts_is_replaced(tmp_path, monkeypatch):
    bundle = vega_bundle()
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path))
    file = tmp_path / f"vega-bundle-{version('vl-convert-python')}.js"
    file.write_bytes(b"\xff\xfe")
    assert vega_bundle.__wrapped__() == bundle
    assert file.read_bytes().decode() == bundle
