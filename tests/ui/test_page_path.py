"""The page that the link of `taetpu ui ADDRESS` opens."""

from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.store.addresses import resolve
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.ui.page_data import Root, page_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    study = StudyFolder(open_store(tmp_path), "a b")
    study.write_study({"study": "a b", "arms": {"lr=0.1": {}}, "seeds": [0, 1]})
    for seed, identity in ((0, "0" * 8), (1, "1" * 8), (1, "2" * 8)):
        study.run("lr=0.1", seed, identity).start({})
    return tmp_path


PAGES = {
    "a b": "/study/a%20b",
    "a b/lr=0.1": "/study/a%20b",
    "a b/lr=0.1/0": "/run/a%20b/lr%3D0.1/0-00000000",
    "2222": "/run/a%20b/lr%3D0.1/1-22222222",
    "latest": "/study/a%20b",
    "ROOT": "/",
    "ROOT/a b/runs/lr=0.1/1-11111111": "/run/a%20b/lr%3D0.1/1-11111111",
}


@pytest.mark.parametrize("address", PAGES)
def test_link_opens_the_page_of_the_address(root: Path, address: str):
    match = resolve(address.replace("ROOT", str(root)), root)
    assert page_path(match) == PAGES[address]
    assert [study["study"] for study in Root(match.place).studies()] == ["a b"]


def test_seed_with_several_runs_is_refused(root: Path):
    with pytest.raises(UserError, match="matches 2 runs") as error:
        page_path(resolve("a b/lr=0.1/1", root))
    assert "(11111111), a b/lr=0.1/1 (22222222)" in str(error.value.remedy)
