"""`taetpu model import` and `export` write a folder whole or not at all, and overwrite nothing."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.interop.cases import VOCAB, theirs

import taetpu as api
from taetpu.core.errors import UserError
from taetpu.core.output_files import write_new_folder


@pytest.fixture
def folder(here):
    """A folder with a model of transformers."""
    theirs("llama-linear").save_pretrained(here / "theirs")
    return here / "theirs"


def test_folders_that_are_not_empty_are_refused(taetpu, here, folder, contents):
    (here / "out").mkdir()
    (here / "out" / "tokenizer.json").write_text("a foreign file")
    (here / "file").write_text("a file")
    before = contents(here)
    for command in ("import", "export"):
        for out, problem in (
            ("out", "this folder is not empty: it contains tokenizer.json"),
            ("file", "this is not a folder"),
            ("file/below", "cannot write: file is not a folder"),
            ("x" * 300, "cannot write: File name too long"),
        ):
            done = taetpu("model", command, folder, "-o", out)
            assert (done.code, done.err.splitlines()[0]) == (2, f"error: {problem}")
            assert f"where:  {out}" in done.err
            assert " -o" in done.err
    assert contents(here) == before


def test_an_export_into_an_empty_folder_and_after_a_kill(taetpu, here, folder):
    (here / "out" / ".unfinished-1").mkdir(parents=True)
    (here / "out" / ".unfinished-1" / "model.safetensors").write_text("half")
    assert taetpu("model", "export", folder, "-o", "out").code == 0
    assert {path.name for path in (here / "out").iterdir()} == {"config.json", "model.safetensors"}
    assert api.open_run(here / "out").vocab_size == VOCAB


def test_an_error_leaves_the_folder_as_it_was(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    for folder in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        existed = folder.exists()
        with pytest.raises(UserError, match=r"cannot write: No space left .*7 bytes.*\n  where: .*\n.*Free"):
            write_new_folder(folder, {"first": b"1", "second": fail}, needed=7)
        assert folder.exists() == existed
        assert not existed or not [*folder.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "import"])
def test_a_disk_that_is_full_or_read_only(here, folder, on_disk, command):
    done = on_disk("size=16k", f"taetpu model {command} theirs -o disk/out; ls -A disk")
    assert (done.code, done.out) == (0, "")  # of ls: nothing is left
    assert ": No space left" in done.err
    assert "where:  disk/out" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_read_only_disk(here, folder, on_disk):
    done = on_disk("size=1m,ro", "taetpu model export theirs -o disk/out")
    assert done.code == 2
    assert "error: cannot write: Read-only file system" in done.err
    assert "another folder with -o." in done.err


@pytest.mark.slow
def test_weights_that_are_not_finite_are_said(process, here, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, folder / "model.safetensors")
    warning = f"warning: 1 of {len(tensors)} tensors hold NaN or infinite numbers: model.norm.weight\n"
    done = process("model", "import", folder, "-o", "ours")
    assert (done.code, done.err) == (0, warning)
    done = process("model", "export", "ours", "-o", "again")
    assert (done.code, done.err) == (0, warning)
    done = process("model", "export", folder, "-o", "directly")
    assert (done.code, done.err) == (0, warning)
    assert json.loads((here / "again" / "config.json").read_text())["model_type"] == "llama"
