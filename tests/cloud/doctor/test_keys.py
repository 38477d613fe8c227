"""Keys of service accounts are found by what stands in files, wherever they are, and what to do is told."""

import json
import os
import shutil
import subprocess

import pytest

from taetpu.cloud.doctor import keys

ACCOUNT = "bot@p.iam.gserviceaccount.com"
GIT = pytest.mark.skipif(shutil.which("git") is None, reason="no git is on the path")
REVOKE = f"gcloud iam service-accounts keys delete abc123 --iam-account={ACCOUNT}"


@pytest.fixture
def key():
    """A key as Google writes it, with nothing secret in it."""
    dashes = "-" * 5
    secret = f"{dashes}BEGIN PRIVATE KEY{dashes}\nnot one\n{dashes}END PRIVATE KEY{dashes}\n"
    kind = "_".join(["service", "account"])
    data = {"type": kind, "project_id": "p", "private_key_id": "abc123", "private_key": secret, "client_email": ACCOUNT}
    return json.dumps(data, indent=2)


@pytest.fixture
def repository(tmp_path):
    """`repository(*arguments)`: git in a new repository."""

    def git(*arguments):
        author = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *arguments], check=True, capture_output=True)

    git("init", "-q")
    return git


def test_a_clean_tree_is_well(tmp_path):
    (tmp_path / "a.json").write_text('{"type": "authorized_user"}')
    (tmp_path / "notes.md").write_text('a key has "type": "service_account" and a "private_key": "..." in it')
    (check,) = keys.checks(tmp_path)
    assert (check.status, check.found) == ("ok", f"no key of a service account in {tmp_path}")


@pytest.mark.parametrize("name", ["key.json", "deep/er/notes.txt", ".hidden/x", "config/.env"])
def test_a_key_is_found_by_its_content_under_any_name(tmp_path, key, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(key)
    (check,) = keys.checks(tmp_path)
    assert (check.name, check.status) == ("keys", "fails")
    assert check.found == f"{path} is the key of the service account {ACCOUNT}"
    assert check.command == REVOKE
    for word in ("revoke it in IAM", "delete the file", "gcloud auth application-default login"):
        assert word in check.remedy


def test_a_key_in_one_line_or_inside_other_text_is_found(tmp_path, key):
    (tmp_path / "one").write_text(json.dumps(json.loads(key)))
    (tmp_path / "inside.yaml").write_text(f"secret: {json.dumps(key)}\n")
    (tmp_path / "vars").write_text(f"KEY='{json.dumps(json.loads(key))}'\n")
    assert [one.path.name for one in keys.search(tmp_path)[0]] == ["inside.yaml", "one", "vars"]
    assert {(one.number, one.account) for one in keys.search(tmp_path)[0]} == {("abc123", ACCOUNT)}


def test_virtual_environments_large_files_and_links_are_left_out(tmp_path, key):
    for folder in (".venv", "env", "node_modules", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "key.json").write_text(key)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "large").write_text(key + " " * keys.LARGEST)
    (tmp_path / "link").symlink_to(tmp_path / "env" / "key.json")
    os.mkfifo(tmp_path / "pipe")
    assert keys.search(tmp_path) == ([], True)


def test_too_many_files_are_not_all_looked_at(tmp_path, key, monkeypatch):
    monkeypatch.setattr(keys, "MOST", 3)
    for name in "abcz":
        (tmp_path / name).write_text("" if name != "z" else key)
    (check,) = keys.checks(tmp_path)
    assert check.found.endswith("among the first 3 files")


@GIT
def test_the_whole_repository_is_searched_and_what_git_tracks_is_told(tmp_path, key, repository):
    (tmp_path / "sub").mkdir()
    (tmp_path / "key.json").write_text(key)
    repository("add", "key.json")
    (check,) = keys.checks(tmp_path / "sub")
    assert f"{tmp_path / 'key.json'} is the key of the service account {ACCOUNT} and git tracks it" == check.found
    assert "taking it out of git does not help whoever has a copy" in check.remedy


@GIT
def test_a_key_that_was_only_committed_is_found(tmp_path, key, repository):
    (tmp_path / "old.json").write_text(key)
    repository("add", ".")
    repository("commit", "-qm", "oh")
    repository("rm", "-q", "old.json")
    repository("commit", "-qm", "gone")
    here, past = keys.checks(tmp_path)
    assert here.status == "ok"
    assert (past.name, past.status, past.command) == ("keys in git", "warning", REVOKE)
    assert past.found.endswith("holds a key in old.json")
    assert "whoever has the repository has the key" in past.remedy
    assert [one.status for one in keys.checks(tmp_path)] == ["ok", "warning"], "looking changes nothing"


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path, key):
    (tmp_path / "a").write_text(key)
    (tmp_path / "a").chmod(0)
    (tmp_path / "b").write_text(key)
    found = {one.path.name for one in keys.search(tmp_path)[0]}
    assert "b" in found
