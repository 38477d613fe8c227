"""`taetpu import-config`: files are written, never overwritten; what is not translated is listed."""

import pytest
from tests.interop.test_configs import CONFIGS, NANOGPT, STUDIES

from taetpu.spec.loading import load_study


def test_configs_of_several_formats_are_written_and_listed(taetpu, here):
    (here / "small.py").write_text(NANOGPT)
    done = taetpu("import-config", CONFIGS / "stories.txt", "small.py", "-o", "studies")
    assert (done.code, done.err) == (0, "")
    assert sorted(file.name for file in (here / "studies").iterdir()) == ["small.yaml", "stories.yaml"]
    for file, title, line in (
        ("studies/stories.yaml", "lm-springboard", "line 27: "),
        ("studies/small.yaml", "nanoGPT", "line 21: "),
    ):
        assert f"wrote {file} from " in done.out
        assert f"({title})" in done.out
        assert line in done.out
        assert line in (here / file).read_text()
        assert load_study(here / file).runs
    assert (
        "next: taetpu plan studies/stories.yaml, then taetpu run studies/stories.yaml studies/small.yaml"
        in " ".join(done.out.split())
    )


def test_a_family_is_named_by_its_prefix(taetpu, here):
    done = taetpu("import-config", CONFIGS / "family", "--json").json()
    assert [one["study"] for one in done] == ["family-addition.yaml", "family-histogram.yaml"]
    assert {one["format"] for one in done} == {"lm-springboard"}
    assert all({"setting", "line", "reason"} == note.keys() for one in done for note in one["notes"])
    assert [one["error"] for one in done] == [None, None]


def test_existing_files_are_kept_and_nothing_is_written(taetpu, here):
    (here / "tasks-maskedcopy.yaml").write_text("mine")
    before = {file.name for file in here.iterdir()}
    done = taetpu("import-config", CONFIGS / "tasks.txt", CONFIGS / "lines.txt")
    assert (done.code, done.out) == (2, "")
    assert "tasks-maskedcopy.yaml" in done.err
    assert {file.name for file in here.iterdir()} == before
    assert (here / "tasks-maskedcopy.yaml").read_text() == "mine"


def test_two_configs_of_one_name_are_refused(taetpu, here):
    (here / "tasks.py").write_text("n_layer = 1\nmax_iters = 3000\n")
    (here / "other").mkdir()
    (here / "other/tasks.py").write_text("n_layer = 2\n")
    done = taetpu("import-config", "tasks.py", "other/tasks.py")
    assert done.code == 2
    assert "tasks.yaml" in done.err
    assert not (here / "tasks.yaml").exists()


def test_a_study_that_cannot_be_trained_is_written_with_a_warning(taetpu, here):
    (here / "odd.txt").write_text("ModelParams\ndim = 16\nn_heads = 3\n")
    done = taetpu("import-config", "odd.txt")
    assert done.code == 0
    assert "warning: odd.yaml" in done.err
    assert "num_heads" in done.err
    assert (here / "odd.yaml").exists()
    again = taetpu("import-config", "odd.txt", "-o", "again", "--json").json()
    assert "num_heads" in again[0]["error"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["s.yaml"], "s.yaml"),
        (["missing"], "missing"),
        (["s.yaml", "--format", "nanogpt"], "s.yaml"),
        (["s.yaml", "--format", "gpt"], "nanogpt"),
        (["."], "."),
    ],
)
def test_other_files_are_refused(taetpu, here, words, named):
    before = sorted(here.iterdir())
    done = taetpu("import-config", *words)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "Traceback" not in done.err
    assert sorted(here.iterdir()) == before


def test_the_examples_are_all_used():
    assert {file.stem for file in CONFIGS.iterdir()} == STUDIES.keys()
