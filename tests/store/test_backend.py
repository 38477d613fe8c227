"""Local and bucket stores: writing once, listing, deleting, and errors that name the place."""

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.core.errors import UserError
from taetpu.store.backend import LocalStore, Store, TemporaryStore, default_root, open_store
from taetpu.store.errors import NotStored, check_name


def test_key_is_written_once(store: Store):
    store.write("s/a", b"first")
    store.write("s/a", b"first")
    with pytest.raises(UserError, match="not be overwritten") as caught:
        store.write("s/a", b"second")
    assert store.where("s/a") in str(caught.value)
    assert "Nothing was overwritten" in str(caught.value)
    assert store.read("s/a") == b"first"
    store.write("s/a", b"second", replace=True)
    assert store.read("s/a") == b"second"


def test_key_is_written_once_without_hard_links(local: LocalStore, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_key_is_written_once(local)
    assert local.list("") == ["s/a"]


def test_missing_keys_are_not_stored(store: Store):
    store.write("s/a", b"")
    for key in ("t", "s", "s/b", "s/a/b"):
        assert not store.exists(key)
        with pytest.raises(NotStored) as caught:
            store.read(key)
        assert isinstance(caught.value, KeyError)
        assert store.where(key) in str(caught.value)
    with pytest.raises(NotStored):
        store.modified("t")
    assert store.list("t") == []
    store.delete("t")


def test_reading_creates_nothing(store: Store, root: str):
    assert store.list("") == []
    assert not store.exists("a")
    assert not Path(root).exists()


def test_list_is_sorted_and_stops_at_the_depth(store: Store):
    keys = ["s/b", "s/a/2", "s/a/1/x", "t/c", "s/a=1.5/+,"]
    for key in keys:
        store.write(key, b"")
    assert store.list("") == sorted(keys)
    assert store.list("s/a") == ["s/a/1/x", "s/a/2"]
    assert store.list("s", depth=1) == ["s/b"]
    assert store.list("", depth=2) == ["s/b", "t/c"]
    assert store.list("s", depth=0) == []


def test_delete_removes_a_key_and_all_keys_below(store: Store):
    for key in ("s/a/1", "s/a/2", "s/ab", "s/c"):
        store.write(key, b"")
    store.delete("s/a")
    store.delete("s/c")
    assert store.list("") == store.list("s") == ["s/ab"]
    assert not store.exists("s/a/1")


def test_deleted_folder_leaves_nothing_behind(local: LocalStore):
    local.write("s/a/1", b"")
    local.write("s/ab", b"")
    local.delete("s/a")
    assert os.listdir(local.root / "s") == ["ab"]


def test_folder_is_created_and_takes_files(store: Store):
    folder = store.folder("s/packs/0")
    assert folder.is_absolute()
    (folder / "state").write_bytes(b"x")
    store.save_folder("s/packs/0")
    assert store.read("s/packs/0/state") == b"x"
    assert store.list("s") == ["s/packs/0/state"]
    assert store.folder("s/packs/0") == folder
    assert store.fetch_folder("s/packs/0")
    assert not store.fetch_folder("s/packs/1")


@given(st.text(max_size=130))
def test_every_valid_name_is_one_part_of_a_path(name: str):
    try:
        check_name(name)
    except UserError:
        return
    assert Path("root", name).parts == ("root", name)
    assert name not in (".", "..")
    assert len(os.fsencode(name)) <= 120


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "a\\b", "a\nb", "a\0", "\ud800", "a" * 121, "\u00e4" * 61]
)
def test_invalid_names_are_refused(store: Store, name: str):
    with pytest.raises(UserError, match="invalid arm") as caught:
        check_name(name, "arm", ("arms", name))
    assert repr(name) in str(caught.value)
    assert "remedy" in str(caught.value)
    with pytest.raises(UserError):
        store.write(f"s/{name}/..", b"")


@pytest.mark.parametrize("name", ["heads=8", "a.b", "lr=1e-3,wd=0.1", "+ffn", "a b", "\u00e4" * 60])
def test_valid_names_are_accepted(store: Store, name: str):
    store.write(f"{name}/{name}", b"x")
    assert store.list("") == [f"{name}/{name}"]


def test_file_in_place_of_a_folder_is_reported(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"precious")
    store = LocalStore(tmp_path / "file" / "root")
    with pytest.raises(UserError, match="not a folder") as caught:
        store.write("s/a", b"x")
    assert str(tmp_path / "file" / "root" / "s" / "a") in str(caught.value)
    assert "--root" in str(caught.value)
    with pytest.raises(UserError, match="not a folder"), store.claim("s/lock"):
        pass
    with pytest.raises(UserError, match="Not a directory"):
        LocalStore(tmp_path / "file").list("")
    assert (tmp_path / "file").read_bytes() == b"precious"


FILL = """
import sys
from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
store = open_store(sys.argv[1])
store.write("s/a", b"old")
for key, replace in (("s/a", True), ("s/new/b", False)):
    try:
        store.write(key, bytes(1_000_000), replace=replace)
    except UserError as error:
        print(error)
assert store.read("s/a") == b"old" and store.list("") == ["s/a"]
with store.claim("s/lock"):
    store.write("s/b", b"fits")
"""


def test_full_disk_loses_nothing(tmp_path: Path, on_mount: Callable[[str, str], str]):
    said = on_mount("size=512k", FILL)
    for key in ("s/a", "s/new/b"):
        assert f"where:  {tmp_path / 'mount' / key}\n" in said
    assert said.count("(1000000 bytes needed, ") == 2
    assert said.count("No space left") == said.count("Free some space") == 2


CLOSED = """
import sys
from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
store = open_store(sys.argv[1])
try:
    store.write("s/a", b"x")
except UserError as error:
    print(error)
try:
    with store.claim("s/lock"):
        print("claimed")
except UserError as error:
    print(error)
"""


def test_read_only_folder_is_reported(tmp_path: Path, on_mount: Callable[[str, str], str]):
    said = on_mount("ro", CLOSED)
    assert said.count("cannot write: Read-only file system") == 2
    assert f"where:  {tmp_path / 'mount' / 's' / 'a'}\n" in said
    assert said.count("--root or TAETPU_ROOT") == 2


def test_unsupported_addresses_are_refused():
    with pytest.raises(UserError, match="stored at 's3://bucket/runs'") as caught:
        open_store("s3://bucket/runs")
    assert "gs://BUCKET/FOLDER" in str(caught.value.remedy)


def test_root_is_the_option_or_the_environment_variable_or_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    assert default_root() == "./runs"
    monkeypatch.setenv("TAETPU_ROOT", "/somewhere")
    assert default_root(None) == "/somewhere"
    assert default_root("here") == "here"


def test_importing_the_store_imports_no_jax():
    script = "import sys, taetpu.store.index; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- temporary --------------------------------------------------------------------------------------------------------


def test_a_temporary_store_names_its_place_and_disappears():
    store = TemporaryStore("place")
    store.write("s/a/1", b"x")
    store.move("s/a", "t/b")
    assert (store.list(""), store.size("t/b/1"), store.where("t/b/1")) == (["t/b/1"], 1, "place/t/b/1")
    folder = store.root
    assert (folder / "t/b/1").read_bytes() == b"x"
    del store
    gc.collect()
    assert not folder.exists()


def test_files_that_are_not_synced_are_written_once_too(tmp_path: Path):
    store = LocalStore(tmp_path / "root", sync=False)
    test_key_is_written_once(store)
    test_list_is_sorted_and_stops_at_the_depth(LocalStore(tmp_path / "other", sync=False))
