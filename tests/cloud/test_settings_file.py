"""One value set in `taetpu.toml`, and nothing else touched."""

import tomllib

import pytest

from taetpu.cloud.settings_file import write
from taetpu.core.errors import UserError

OWN = """# Mine.
[cloud]
project = "p"  # the lab's
image = "old"   # of May
zones = [
  "us-east5-b",
]
"""


def test_a_value_takes_the_place_of_the_old_one_and_everything_else_stays(tmp_path):
    (tmp_path / "taetpu.toml").write_text(OWN)
    assert write("image", "new@sha256:1", tmp_path) == tmp_path / "taetpu.toml"
    text = (tmp_path / "taetpu.toml").read_text()
    assert text == OWN.replace('image = "old"   # of May', 'image = "new@sha256:1"')


def test_a_value_that_is_not_there_is_added_to_the_table(tmp_path):
    (tmp_path / "taetpu.toml").write_text(OWN)
    write("region", "us-east5", tmp_path)
    text = (tmp_path / "taetpu.toml").read_text()
    assert text == OWN.replace("[cloud]\n", '[cloud]\nregion = "us-east5"\n')


@pytest.mark.parametrize("before", [None, "", "# nothing yet\n"])
def test_a_file_without_the_table_or_none_at_all_gets_it(tmp_path, before):
    if before is not None:
        (tmp_path / "taetpu.toml").write_text(before)
    write("zones", ["us-east5-b"], tmp_path)
    text = (tmp_path / "taetpu.toml").read_text()
    assert tomllib.loads(text) == {"cloud": {"zones": ["us-east5-b"]}}
    assert text.startswith(before or "")


def test_the_nearest_file_above_is_the_one(tmp_path):
    (tmp_path / "taetpu.toml").write_text(OWN)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert write("image", "x", inner) == tmp_path / "taetpu.toml"
    assert list(inner.iterdir()) == []


@pytest.mark.parametrize(
    "text", ['[cloud]\nimage = """\nold\n"""\n', 'cloud.project = "p"\n', 'cloud = {image = "x"}\n', "[cloud\n"]
)
def test_what_cannot_be_set_line_by_line_is_left_as_it_is_and_said(tmp_path, text):
    (tmp_path / "taetpu.toml").write_text(text)
    with pytest.raises(UserError, match="image could not be set") as refused:
        write("image", "new", tmp_path)
    assert 'image = "new"' in str(refused.value)
    assert (tmp_path / "taetpu.toml").read_text() == text
