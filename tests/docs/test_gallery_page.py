"""The page of the gallery has the table and the sections of the index. UPDATE_SCREENS=1 writes them."""

import os
from pathlib import Path

from taetpu.study.gallery_index import NOT_RUN, Entry, read_gallery

PAGE = Path(__file__).parents[2] / "docs/gallery.md"
START, END = "<!-- table -->\n", "<!-- end of the table -->"
COLUMNS = ("study", "result", "here")

IMAGES = PAGE.parent / "img/gallery"
MOST = 300_000
"""Maximum size of a picture, in bytes."""


def render_row(entry: Entry) -> str:
    """Return a row of the table, which links to the study's section."""
    return f"| [{entry.name}](#{entry.name}) | {entry.title} | {entry.outcome} |\n"


def render_section(entry: Entry) -> str:
    """Return the section of a study: its claim and source, what is expected, what was measured and its picture."""
    source, seen = entry.source, entry.measured
    by = f"{source.by}, *{source.title}*" + (f", arXiv {source.arxiv}" if source.arxiv else "")
    file = f"../src/taetpu/study/gallery/{entry.name}"
    outcome = f"- **{entry.outcome.capitalize()}**"
    lines = [
        f"## {entry.name}\n\n{entry.claim} {by} (read: {source.read}).\n",
        f"- Expected: {entry.tolerance}",
        f"{outcome}: {seen.values}. {seen.reason}".strip() if seen else outcome,
    ]
    if seen:
        cpu = f"{seen.cpu_seconds} s of CPU time, " if seen.cpu_seconds else ""
        lines.append(f"- Run: {cpu}{seen.seconds} s in all; {seen.date}, {seen.machine}")
    lines.append(f"- Files: [study]({file}.yaml), [claims]({file}.claims.yaml)\n\n")
    return "\n".join(lines) + (f"![{entry.title}](img/gallery/{entry.name}.svg)\n\n" if seen else "")


def test_page_has_the_table_of_the_index() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head = f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    entries = read_gallery().values()
    table = head + "".join(map(render_row, entries)) + "\n" + "".join(map(render_section, entries))
    before, _, after = text.partition(START)
    if os.environ.get("UPDATE_SCREENS"):
        PAGE.write_text(before + START + table + END + after.partition(END)[2], encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
    assert text.partition(START)[2].partition(END)[0] == table, "UPDATE_SCREENS=1 writes the table"


def test_studies_that_were_not_run_have_no_numbers() -> None:
    for entry in read_gallery().values():
        assert (entry.outcome == NOT_RUN) == (entry.measured is None)
        assert entry.measured is None or entry.measured.seconds > 0


def test_pictures_are_small_and_of_studies_that_were_run() -> None:
    files = [*IMAGES.iterdir()]
    assert {file.stem for file in files} == {name for name, entry in read_gallery().items() if entry.measured}
    assert max(file.stat().st_size for file in files) < MOST
