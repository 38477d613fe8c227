"""Every line of docs/tokenizers.md reads the file that it names."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.tokenizer_files import fill_ranks, ranks_of, train_bpe, train_pieces, write_ranks

from taetpu.core.config_parsing import build_component
from taetpu.core.registry import kinds

PAGE = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text()
ROWS = [
    (have, line.replace(r"\|", "|")) for have, line in re.findall(r"^\| (.*?) \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
]
TEXT = "".join(f"Text {i}: and so on until {i * 7919} <|endoftext|>.\n" for i in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of all kinds that the page names."""
    made = tmp_path_factory.mktemp("tokenizers")
    inner = train_bpe(TEXT)
    run = made / "runs/first/runs/baseline/0-1f3a/model"
    run.mkdir(parents=True)
    for place in (made, run):
        (place / "tokenizer.json").write_text(inner.to_str())
    write_ranks(made / "ranks.tiktoken", ranks_of(inner))
    write_ranks(made / "gpt2.tiktoken", fill_ranks(ranks_of(inner), 50256))
    (made / "tokenizer.model").write_bytes(train_pieces(TEXT))
    return made


def test_the_page_has_a_line_for_each_kind():
    named = {YAML(typ="safe").load(line)["kind"] for _, line in ROWS}
    assert named == {kind for kind, cls in kinds("tokenizer").items() if not cls.plugin}


LOCAL = [(have, line) for have, line in ROWS if "kind: hub" not in line]  # see tests/data/test_tokenizer_hub.py


@pytest.mark.parametrize("line", [line for _, line in LOCAL], ids=[have for have, _ in LOCAL])
def test_each_line_reads_a_tokenizer(line, folder):
    config = build_component("tokenizer", YAML(typ="safe").load(line))
    if config.kind == "start":
        config = config.of_model((folder / "tokenizer.json").read_text(), 310)
    tokenizer = config.prepare(TEXT, folder)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert ids.max() < tokenizer.vocab_size
    if getattr(config, "crop", False):
        assert tokenizer.vocab_size <= 300
    elif config.kind == "start":
        assert tokenizer.vocab_size == 310
    parsed = tokenizer.number("<|endoftext|>") in ids
    assert parsed == getattr(config, "parse_special", False)
