"""Consoles and pipes that differ: other encodings, streams that are closed, full or that nobody reads."""

import io
import os
import re
import subprocess
import sys

import pytest

GREEK = """\
study: greek
base:
  task: {kind: text, source: text.txt, tokenizer: {kind: char}, seq_len: 16}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, eval_every: 4, sample: {tokens: 8}}
arms:
  low-lr: {train.optimizer.lr: 1e-4}
seeds: 1
"""


def call(encoding: str, *args: object) -> tuple[int, str, str]:
    """Run the entry point with standard streams of this encoding. Return the exit code and both outputs."""
    from taetpu.cli.main import main

    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["taetpu", *map(str, args)])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as ended:
            main()
    outputs = []
    for stream in streams:
        stream.flush()
        outputs.append(stream.buffer.getvalue().decode(encoding))
    return int(ended.value.code or 0), *outputs


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_characters_that_the_encoding_lacks_are_escaped(here, encoding):
    code, out, _ = call(encoding, "list", "--root", "μικρό")
    assert (code, "\\u03bc\\u03b9\\u03ba\\u03c1\\u03cc" in out) == (0, True), out
    code, out, err = call(encoding, "check", "μικρό.yaml")
    assert (code, out, "\\u03bc\\u03b9\\u03ba\\u03c1\\u03cc.yaml" in err) == (2, "", True), err


@pytest.mark.slow
def test_study_of_another_script_in_the_locale_c(here, process):
    (here / "text.txt").write_text(
        "μικρή βάρκα πέρασε το κρύο ποτάμι ενώ δύο σκυλιά κοιμόντουσαν. " * 60, encoding="utf-8"
    )
    (here / "s.yaml").write_text(GREEK + "# Ελληνικά\n", encoding="utf-8-sig")
    # Without the coercion of the locale, files that are opened without an encoding are ASCII.
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252"}
    for words in (
        ("run", "s.yaml", "--samples"),
        ("report", "runs/greek", "--verify"),
        ("status", "runs/greek"),
        ("lens", "sample", "latest", "--tokens", "5"),
        ("lens", "perplexity", "latest", "text.txt", "--per-token"),
        ("plot", "runs/greek", "-o", "chart.svg"),
        ("model", "export", "greek/baseline/0", "-o", "exported"),
        ("new", "idea"),
        ("plan", "idea.yaml"),
    ):
        done = process(*words, **locale)
        assert done.code == 0, (words, done.err)
        assert "Traceback" not in done.err + done.out


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_study_file_of_another_encoding(taetpu, here, encoding):
    (here / "s.yaml").write_text("study: é\n", encoding=encoding)
    done = taetpu("plan", "s.yaml")
    assert done.code == 2, done.err
    assert "s.yaml:1" in done.err
    assert "as UTF-8." in done.err.partition("remedy:")[2]


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("list >&-", 0, ""),
        pytest.param("list --nix 2>&-", 2, "", marks=pytest.mark.slow),
        pytest.param("list <&- >&- 2>&-", 0, "", marks=pytest.mark.slow),
        ("list >/dev/full", 2, "error: .*: No space left.*"),
        pytest.param("catalog >/dev/full", 2, "error: .*: No space left.*", marks=pytest.mark.slow),
    ],
)
def test_closed_and_full_streams(here, script, code, message):
    done = subprocess.run(
        ["sh", "-c", f'"$PYTHON" -m taetpu {script}'],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    assert re.fullmatch(message, done.stderr.partition("\n")[0])


def test_closed_streams_do_not_receive_files(tmp_path):
    """Where standard output is closed, the next file to be opened would take its descriptor."""
    script = "from taetpu.core.streams import prepare_streams as p; p(); import os, sys; f = open('file', 'w')"
    script += "; print('to nobody'); os.write(1, b'nor this'); os.write(2, b'nor this'); assert f.fileno() > 2"
    subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{script}" <&- >&- 2>&-'], cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.slow
def test_reader_that_ends_early(here):
    done = subprocess.run(
        ["sh", "-c", '"$PYTHON" -m taetpu catalog --markdown | head -n 1'],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("# Catalogue of kinds\n", "")
