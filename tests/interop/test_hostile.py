"""Damaged folders of models are read or refused: no traceback, no 10 s, no 1 GB (see `hostile`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.cases import theirs
from tests.interop.test_special_tokens import tokenizer
from tests.suites import SEED

BASES = ("gpt2", "neox", "llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt-oss")


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    """A folder with folders of models: half of them in shards, with several tokenizers."""
    top = tmp_path_factory.mktemp("bases")
    for number, case in enumerate(BASES):
        folder = top / case
        theirs(case).save_pretrained(folder, max_shard_size="8KB" if number % 2 else "1GB")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4], "bos_token_id": 1}))
        inner = tokenizer()
        if case == "gpt2":
            inner.model.save(str(folder))
        else:
            (folder / "tokenizer.json").write_text(inner.to_str())
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<unk>"}))
    return top


def run(bases: Path, cases: int, first: int, seed: int) -> dict[str, int]:
    words = [sys.executable, "-m", "tests.interop.hostile", bases, "--cases", cases, "--first", first, "--seed", seed]
    ended = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=cases + 200)
    assert ended.returncode == 0, f"{ended.stdout[-6000:]}\n{ended.stderr[-3000:]}"
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_damaged_folders(bases):
    outcomes = run(bases, 300, 0, SEED)
    assert min(outcomes["read"], outcomes["refused"]) > 30


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_10_000_damaged_folders(bases, part):
    run(bases, 500, 300 + 500 * part, SEED)
