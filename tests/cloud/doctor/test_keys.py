"""Keys of service accounts are found by what stands in files, wherever they are, and what to do is told."""

import base64
import gzip
import json
import os
import shutil
import subprocess
import tarfile
import textwrap
import zipfile

import pytest

from taetpu.cloud.doctor import history, keys

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
    assert [one.path.name for one in keys.search(tmp_path).found] == ["inside.yaml", "one", "vars"]
    assert {(one.number, one.account) for one in keys.search(tmp_path).found} == {("abc123", ACCOUNT)}


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("width", [None, 76, 64, 10])
def test_a_key_in_base64_is_found_at_every_alignment_and_however_it_is_wrapped(tmp_path, key, before, width):
    text = base64.b64encode(f"{before}{key}".encode()).decode()
    lines = [text] if width is None else textwrap.wrap(text, width)
    (tmp_path / "secret.yaml").write_text("data:\n  key.json: |\n" + "".join(f"    {line}\n" for line in lines))
    (tmp_path / "vars").write_text(f"A=1\nKEY={text}\nB=2\n")
    (tmp_path / "url-safe").write_text(base64.urlsafe_b64encode(key.encode()).decode())
    found = keys.search(tmp_path).found
    assert [(one.path.name, one.number, one.account) for one in found] == [
        (name, "abc123", ACCOUNT) for name in ("secret.yaml", "url-safe", "vars")
    ]


def test_base64_of_another_private_key_is_none_of_a_service_account(tmp_path, key):
    secret = json.loads(key)["private_key"].encode()
    (tmp_path / "tls.yaml").write_text(f"tls.key: {base64.b64encode(secret).decode()}\n")
    assert keys.search(tmp_path).found == []
    with (tmp_path / "tls.yaml").open("a") as file:
        file.write(f"more: {base64.b64encode(key.encode()).decode()}\n")
    assert [one.number for one in keys.search(tmp_path).found] == ["abc123"], "the second one in a file is"


def test_a_large_file_is_read_and_one_that_is_not_is_told(tmp_path, key, monkeypatch):
    (tmp_path / "notebook.ipynb").write_text(" " * 300_000 + json.dumps({"cell": key}))
    assert [one.path.name for one in keys.search(tmp_path).found] == ["notebook.ipynb"]
    (tmp_path / "notebook.ipynb").unlink()
    (tmp_path / "folder").symlink_to("/")
    (tmp_path / "large").write_bytes(b" " * (keys.LARGEST + 1))
    os.mkfifo(tmp_path / "pipe")
    (check,) = keys.checks(tmp_path)
    told = "not looked at: 1 larger than 8 MB, 1 links to folders"
    assert (check.status, check.found) == ("ok", f"no key of a service account in {tmp_path}; {told}")


def test_a_link_that_leads_to_a_key_is_followed_and_the_key_told_once(tmp_path, key):
    (tmp_path / "elsewhere").write_text(key)
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.json").symlink_to(tmp_path / "elsewhere")
    (project / "b.json").symlink_to("a.json")
    (project / "nowhere").symlink_to("none")
    (check,) = keys.checks(project)
    told = f"{project / 'a.json'}, a link to {tmp_path / 'elsewhere'}, is the key of the service account {ACCOUNT}"
    assert (check.status, check.found, check.command) == ("fails", told, REVOKE)


@pytest.mark.parametrize("folder", ["node_modules/y", ".venv/x", "env/x", "__pycache__"])
def test_installed_packages_are_looked_into_last(tmp_path, key, folder, monkeypatch):
    path = tmp_path / folder / "key.json"
    path.parent.mkdir(parents=True)
    path.write_text(key)
    (tmp_path / folder.partition("/")[0] / "pyvenv.cfg").touch()
    (tmp_path / "z.json").write_text(key.replace("abc123", "own"))
    assert [one.number for one in keys.search(tmp_path).found] == ["own", "abc123"]
    (tmp_path / "z.json").unlink()
    (check,) = keys.checks(tmp_path)
    assert (check.status, check.found) == ("fails", f"{path} is the key of the service account {ACCOUNT}")
    monkeypatch.setattr(keys, "MOST", 0)
    (check,) = keys.checks(tmp_path)
    assert check.status == "warning", "a sync would send it"


@GIT
@pytest.mark.parametrize("rule", [".gitignore", ".venv/.gitignore"])
def test_where_time_ends_in_packages_that_git_ignores_it_is_told_and_no_warning(
    tmp_path, key, repository, rule, monkeypatch
):
    (tmp_path / ".git" / "key.json").write_text(key)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "key.json").write_text(key)
    (tmp_path / rule).write_text("*" if "/" in rule else ".venv\n")
    assert [one.path.parent.name for one in keys.search(tmp_path).found] == [".venv"]
    monkeypatch.setattr(keys, "SHORT", -1.0)
    (check,) = keys.checks(tmp_path)
    told = f"no key of a service account in {tmp_path}; not looked at: all of .venv"
    assert (check.status, check.found) == ("ok", told)


def test_a_bare_private_key_is_a_warning_and_one_with_a_passphrase_is_none(tmp_path):
    dashes, body = "-" * 5, base64.b64encode(bytes(90)).decode()

    def pem(kind):
        return f"{dashes}BEGIN {kind}{dashes}\n{body}\n{dashes}END {kind}{dashes}\n"

    for name, kind in (("a.pem", "PRIVATE KEY"), ("b", "RSA PRIVATE KEY"), ("c", "ENCRYPTED PRIVATE KEY")):
        (tmp_path / name).write_text(pem(kind))
    (tmp_path / "d.pem").write_text(pem("CERTIFICATE"))
    (tmp_path / "vars").write_text(json.dumps({"KEY": pem("EC PRIVATE KEY")}))
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "of-its-tests.pem").write_text(pem("PRIVATE KEY"))
    clean, *bare = keys.checks(tmp_path)
    assert (clean.status, [check.status for check in bare]) == ("ok", ["warning"] * 3)
    assert [check.found for check in bare] == [
        f"{tmp_path / name} holds a private key" for name in ("a.pem", "b", "vars")
    ]
    assert "`taetpu tpu sync` sends whatever git does not ignore" in bare[0].remedy


def test_archives_are_told_and_a_plain_tar_is_looked_into(tmp_path, key):
    with gzip.open(tmp_path / "key.json.gz", "wt") as packed:
        packed.write(key)
    with zipfile.ZipFile(tmp_path / "keys.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("key.json", key)
    (check,) = keys.checks(tmp_path)
    told = f"no key of a service account in {tmp_path}; not looked at: 2 archives"
    assert (check.status, check.found) == ("ok", told)
    (tmp_path / "key.json").write_text(key)
    with tarfile.open(tmp_path / "keys.tar", "w") as plain:
        plain.add(tmp_path / "key.json", "key.json")
    (tmp_path / "key.json").unlink()
    found, rest = keys.checks(tmp_path)
    assert (found.status, rest.status, rest.found) == ("fails", "warning", "not looked at: 2 archives")


@pytest.mark.parametrize(("name", "value"), [("MOST", 3), ("PATIENCE", -1.0)])
def test_where_not_all_files_were_looked_at_it_is_a_warning(tmp_path, key, monkeypatch, name, value):
    monkeypatch.setattr(keys, name, value)
    for file in "abcz":
        (tmp_path / file).write_text("" if file != "z" else key)
    (check,) = keys.checks(tmp_path)
    assert check.status == "warning"
    assert check.found == f"only the first {max(int(value), 0)} files of {tmp_path} were looked at"
    assert "what was not looked at may hold a key" in check.remedy


def test_without_git_all_is_searched_that_a_sync_would_send(tmp_path, key):
    (tmp_path / "sub").mkdir()
    (tmp_path / "taetpu.toml").touch()
    (tmp_path / "key.json").write_text(key)
    assert [check.status for check in keys.checks(tmp_path / "sub")] == ["fails"]


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
    assert (past.name, past.status, past.command) == ("keys in git", "fails", REVOKE)
    assert past.found.endswith(f"holds a key of the service account {ACCOUNT} in old.json")
    assert "it counts as leaked" in past.remedy
    assert [one.status for one in keys.checks(tmp_path)] == ["ok", "fails"], "looking changes nothing"


def committed(repository, tmp_path, text, name="old.json"):
    """A file that was committed and is gone again."""
    (tmp_path / name).write_text(text)
    repository("add", ".")
    repository("commit", "-qm", "oh")
    repository("rm", "-q", name)
    repository("commit", "-qm", "gone")


FORMS = {
    "compact": lambda key: json.dumps(json.loads(key), separators=(",", ":")),
    "escaped": lambda key: json.dumps({"secret": key}),
    "base64": lambda key: base64.encodebytes(b"x" + key.encode()).decode(),
    "binary": lambda key: "\0" + key,
}


@GIT
@pytest.mark.parametrize("form", FORMS)
def test_git_is_looked_through_as_files_are(tmp_path, key, repository, form):
    committed(repository, tmp_path, FORMS[form](key))
    here, past = keys.checks(tmp_path)
    assert (here.status, past.name, past.status, past.command) == ("ok", "keys in git", "fails", REVOKE)


@GIT
def test_a_key_that_only_a_merge_or_a_branch_brought_is_found(tmp_path, key, repository):
    repository("commit", "-q", "--allow-empty", "-m", "first")
    repository("checkout", "-qb", "side")
    (tmp_path / "a").write_text("a")
    repository("add", ".")
    repository("commit", "-qm", "side")
    repository("checkout", "-q", "-")
    repository("commit", "-q", "--allow-empty", "-m", "main")
    repository("merge", "-q", "--no-commit", "side")
    (tmp_path / "in-merge").write_text(key)
    repository("add", ".")
    repository("commit", "-qm", "merged")
    repository("rm", "-q", "in-merge")
    repository("commit", "-qm", "gone")
    _, past = keys.checks(tmp_path)
    words = ["git", "-C", str(tmp_path), "rev-parse", "--short", "HEAD~"]
    merge = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert past.found == f"commit {merge} holds a key of the service account {ACCOUNT} in in-merge"
    repository("checkout", "-qb", "other", "side")
    committed(repository, tmp_path, key.replace("abc123", "def456"), "on-branch")
    repository("checkout", "-q", "-")
    assert {check.found.rpartition(" ")[2] for check in keys.checks(tmp_path)[1:]} == {"in-merge", "on-branch"}


@GIT
def test_an_older_key_under_the_same_name_is_told_too(tmp_path, key, repository):
    (tmp_path / "key.json").write_text(key.replace("abc123", "older1"))
    repository("add", ".")
    repository("commit", "-qm", "first")
    (tmp_path / "key.json").write_text(key)
    repository("commit", "-qam", "rotated")
    here, past = keys.checks(tmp_path)
    assert (here.status, here.command) == ("fails", REVOKE)
    assert past.command == REVOKE.replace("abc123", "older1")


@GIT
def test_a_history_that_was_not_looked_at_whole_is_told(tmp_path, key, repository, monkeypatch):
    committed(repository, tmp_path, key)
    (tmp_path / "a").write_text("x")
    repository("add", ".")
    repository("commit", "-qm", "a")
    monkeypatch.setattr(keys, "LARGEST", 100)
    _, past = keys.checks(tmp_path)
    assert (past.name, past.status, past.command) == ("keys in git", "warning", keys.SEARCH)
    assert past.found == "git's history was not looked at whole: 1 files are larger than 0 MB"
    shell = subprocess.run(["sh", "-c", past.command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "old.json" in shell.stdout, "the command that is shown finds it"
    monkeypatch.undo()
    clock = iter(range(100))
    monkeypatch.setattr(history.time, "monotonic", lambda: next(clock))
    past = history.Past(tmp_path, 2, keys.LARGEST)
    assert len(list(past.files())) == 1
    assert past.left == "only 1 of 2 files were, for lack of time"
    past = history.Past(tmp_path, 0, keys.LARGEST)  # git may answer within the millisecond that is left
    assert list(past.files()) == []
    assert past.left in ("git did not list it in time", "only 0 of 2 files were, for lack of time")


@GIT
def test_a_shallow_clone_says_that_it_is_one(tmp_path, key, repository):
    committed(repository, tmp_path, key)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}", str(clone)], check=True)
    told = [check.found for check in keys.checks(clone)]
    assert told[1:] == ["git's history was not looked at whole: this clone has only its newest part (it is shallow)"]


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path, key):
    (tmp_path / "a").write_text(key)
    (tmp_path / "a").chmod(0)
    (tmp_path / "b").write_text(key)
    found = {one.path.name for one in keys.search(tmp_path).found}
    assert "b" in found
