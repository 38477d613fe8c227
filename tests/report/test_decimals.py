"""Effects, intervals and differences have at least as many decimal places as the means, in every output."""

import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.stats.conftest import made_study

from taetpu.cli.status import render
from taetpu.cli.status_model import StudyMonitor
from taetpu.report import notebook, summary
from taetpu.report.inputs import Inputs, read_inputs
from taetpu.report.section_types import Table
from taetpu.report.sections import build_sections
from taetpu.report.terminal_text import table_text
from taetpu.report.text_formats import format_figure, latex_table, markdown
from taetpu.stats import formatting
from taetpu.stats.analyse import analyse

DIFFERENCES = ("effect", "interval", "95 %", "difference", "minus", "worst case", "without a seed", "sum of", "excess")
OTHERS = ("effect / sd", "correlation", "p", "95 % over texts")
STUDIES = st.tuples(
    st.floats(-3, 4).map(lambda power: 10**power),  # the baseline's mean
    st.one_of(st.just(0.0), st.floats(-6, 0).map(lambda power: 10**power)),  # noise, as a share of the mean
    st.lists(st.one_of(st.just(0.0), st.floats(-0.5, 0.5), st.floats(-1e-5, 1e-5)), min_size=1, max_size=3),
    st.integers(1, 6),  # seeds
    st.integers(0, 2**16),
)


def stored(drawn, root: Path):
    """Store a study with these effects and this noise, relative to the mean. An effect of 0 copies the baseline."""
    mean, noise, effects, seeds, seed = drawn
    rng = np.random.default_rng(seed)
    base = mean * (1 + noise * rng.normal(size=seeds))
    values = {"baseline": dict(enumerate(map(float, base)))}
    for i, effect in enumerate(effects):
        own = base + mean * (effect + noise * rng.normal(size=seeds)) if effect else base
        values[f"arm{i}"] = dict(enumerate(map(float, own)))
    return made_study(root, values)


def decimals(cell: str) -> list[int]:
    """Return the number of decimal places of every number in a cell."""
    figures = re.findall(r"\d+(?:\.(\d+))?(?:e(-?\d+))?", cell)
    return [len(digits) - int(power or 0) for digits, power in figures]


def differences(table: Table) -> Iterator[str]:
    """Yield the cells of the columns that contain effects, intervals and differences."""
    for i, column in enumerate(table.columns):
        if column not in OTHERS and any(name in column for name in DIFFERENCES):
            yield from (row[i] for row in table.rows if row[i] != "-")


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(STUDIES)
def test_effects_have_the_decimals_of_the_means_and_only_zero_is_shown_as_0(drawn) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = stored(drawn, Path(root))
        results = analyse(folder)
        rows, places = summary.verdict_rows(results), summary.mean_places(results)
        for row, arm in zip(rows, results["arms"], strict=True):
            assert decimals(row.mean) == [places]
            for shown in (row.effect, row.interval):
                assert shown == "-" or min(decimals(shown)) >= places
            assert row.effect != "0" or formatting.is_zero(arm["effect"])
            assert row.noise_sd == "-" or decimals(row.noise_sd) == [1]
        tables = [table for part in build_sections(results, {}, {}) for table in part.tables]
        tables += [detail.runs for detail in read_inputs(folder, results).arms]
        for table in tables:
            for cell in differences(table):
                assert min(decimals(cell), default=places) >= places, (table.columns, cell)
        console = Console(file=io.StringIO(), width=80, record=True)
        console.print(render(StudyMonitor(root).update(), console))
        watch = console.export_text()
        for text in (markdown(results, Inputs()), notebook.notebook_html(results, {}), watch):
            assert all(row.effect in text for row in rows if row.effect != "-")
        text = table_text(results)
        assert all(row.effect in text or formatting.scientific(row.effect) in text for row in rows)
        assert all(format_figure(row.effect) in latex_table(results) for row in rows)
