"""The command that `plan` and `--check` show is on one line, and bash reads it as the same words."""

import subprocess

from hypothesis import example, given
from hypothesis import strategies as st

from taetpu.study.programs.preview import format_command

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=4)


@given(WORDS)
@example(["a b", "line\nline", "it's\n", "é\u200b", "\\n\t", ""])
def test_bash_reads_the_same_words(words):
    shown = format_command(["printf", "%s\\0", *words])
    assert "\n" not in shown
    read = subprocess.run(["bash", "-c", shown], check=True, capture_output=True, env={"LC_ALL": "C.UTF-8"}).stdout
    assert read.decode() == "".join(f"{word}\0" for word in words or [""])
