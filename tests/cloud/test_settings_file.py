"""`taetpu.toml` as text: a new one says everything, and another value changes nothing else."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.cloud.settings import FILE, Settings, read
from taetpu.cloud.settings_file import TEXTS, text, with_value, write, write_new
from taetpu.core.errors import UserError
from taetpu.core.loading import load

LINES = ["project = 'p'", "# a word", "", "zones = ['x-y1-z'] # here", "max_usd = 3.0"]
ZONES = ["us-east5-b", "europe-west4-a"]


def test_a_new_file_explains_every_setting_and_is_read_as_the_defaults(tmp_path):
    assert set(TEXTS) == set(Settings.model_fields)
    path = write_new(tmp_path, text({}))
    assert read(tmp_path, {"USER": "me"}) == Settings(owner="me")
    lines = [line.removeprefix("# ") for line in path.read_text().splitlines() if re.match(r"# \w+ = ", line)]
    loaded = tomllib.loads("\n".join(lines))
    assert set(loaded) == set(Settings.model_fields), "every setting stands in it as it would be written"
    assert load(Settings, loaded).max_usd == 20.0


def test_values_stand_in_a_new_file(tmp_path):
    write_new(tmp_path, text({"owner": 'a "b" c', "zones": ZONES, "max_hours": 2.5, "external_ip": True}))
    found = read(tmp_path, {})
    assert (found.owner, found.zones, found.max_hours, found.external_ip) == ('a "b" c', tuple(ZONES), 2.5, True)


def test_a_file_that_is_there_stays(tmp_path):
    (tmp_path / FILE).write_text("mine")
    with pytest.raises(UserError, match="stays as it is"):
        write_new(tmp_path, text({}))
    assert (tmp_path / FILE).read_text() == "mine"


def test_zones_take_the_place_of_zones_and_all_comments_stay():
    old = (
        "# mine\n[cloud]  # all of it\nproject = 'p'\nzones = [  # the old ones\n    'us-west4-a',\n"
        "    # 'us-west4-b', too slow\n]\nmax_usd = 3 # no more\n"
    )
    new = with_value(old, "zones", ZONES)
    assert new == (
        "# mine\n[cloud]  # all of it\nproject = 'p'\n# the old ones\n# 'us-west4-b', too slow\n"
        'zones = ["us-east5-b", "europe-west4-a"]\nmax_usd = 3 # no more\n'
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[cloud]\nproject = 'p'\n", "[cloud]\nzones = [\"a-b1-c\"]\nproject = 'p'\n"),
        ("[cloud]", '[cloud]\nzones = ["a-b1-c"]\n'),
        ("", '[cloud]\nzones = ["a-b1-c"]\n'),
        ("# nothing yet\n", '# nothing yet\n\n[cloud]\nzones = ["a-b1-c"]\n'),
        ("[cloud]\nzones = []\n", '[cloud]\nzones = ["a-b1-c"]\n'),
    ],
)
def test_zones_are_put_where_none_are(old, new):
    assert with_value(old, "zones", ["a-b1-c"]) == new


def test_a_file_written_otherwise_is_left_as_it_is(tmp_path):
    path = tmp_path / FILE
    path.write_text("cloud = {project = 'p', zones = ['us-west4-a']}\n")
    with pytest.raises(UserError, match="zones cannot be put into it") as error:
        write("zones", ZONES, tmp_path)
    assert error.value.remedy == 'write below [cloud]: zones = ["us-east5-b", "europe-west4-a"]'
    assert path.read_text() == "cloud = {project = 'p', zones = ['us-west4-a']}\n"


@given(
    st.lists(st.sampled_from(LINES), unique=True),
    st.lists(st.sampled_from(ZONES), unique=True),
)
def test_only_zones_ever_change(lines, zones):
    old = "[cloud]\n" + "\n".join(lines)
    new = with_value(old, "zones", zones)
    assert new is not None
    assert tomllib.loads(new)["cloud"] == {**tomllib.loads(old)["cloud"], "zones": zones}
    assert [line for line in new.splitlines() if line.startswith("# a")] == [x for x in lines if x.startswith("# a")]
    assert with_value(new, "zones", zones) == new


OWN = """# Mine.
[cloud]
project = "p"  # the lab's
image = "old"   # of May
zones = [
  "us-east5-b",
]
"""


def test_a_value_takes_the_place_of_the_old_one_and_everything_else_stays(tmp_path):
    (tmp_path / FILE).write_text(OWN)
    assert write("image", "new@sha256:1", tmp_path) == tmp_path / FILE
    assert (tmp_path / FILE).read_text() == OWN.replace('image = "old"', 'image = "new@sha256:1"')


@pytest.mark.parametrize("before", [None, "", "# nothing yet\n"])
def test_a_file_without_the_table_or_none_at_all_gets_it(tmp_path, before):
    if before is not None:
        (tmp_path / FILE).write_text(before)
    write("region", "us-east5", tmp_path)
    written = (tmp_path / FILE).read_text()
    assert tomllib.loads(written) == {"cloud": {"region": "us-east5"}}
    assert written.startswith(before or "")


def test_the_nearest_file_above_is_the_one(tmp_path):
    (tmp_path / FILE).write_text(OWN)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert write("image", "x", inner) == tmp_path / FILE
    assert list(inner.iterdir()) == []


def test_a_value_of_several_lines_gives_way_whole(tmp_path):
    (tmp_path / FILE).write_text('[cloud]\nimage = """\nold\n"""\n')
    write("image", "new", tmp_path)
    assert (tmp_path / FILE).read_text() == '[cloud]\nimage = "new"\n'


@pytest.mark.parametrize("old", ['cloud.project = "p"\n', 'cloud = {image = "x"}\n', "[cloud\n"])
def test_what_cannot_be_set_by_lines_is_left_as_it_is_and_said(tmp_path, old):
    (tmp_path / FILE).write_text(old)
    with pytest.raises(UserError, match="image cannot be put into it") as refused:
        write("image", "new", tmp_path)
    assert refused.value.remedy == 'write below [cloud]: image = "new"'
    assert (tmp_path / FILE).read_text() == old
