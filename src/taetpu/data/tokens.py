"""Task `tokens`: next-token prediction on files of token numbers, which are read where they lie."""

import os
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError, change_errors, locate_errors
from taetpu.core.registry import register
from taetpu.data.base import BatchSpec
from taetpu.data.corpora import Sources, names_of
from taetpu.data.digests import digest_file, digest_tokens
from taetpu.data.mixture import Weights, count_windows, mix, refuse_shared
from taetpu.data.next_token import NextTokenTask
from taetpu.data.remote.fetched import Fetched
from taetpu.data.remote.sources import describe_origins, fetch, is_remote
from taetpu.data.source_task import check_crop
from taetpu.data.stream_source import EVALUATED, StreamSource
from taetpu.data.text import Count, Share
from taetpu.data.token_files import Dtype, TokenFile, TokenStream, check_dtype, join_streams, open_token_file

NAMED = {"train": ("train",), "val": ("val", "valid", "dev"), "test": ("test",)}
"""Parts of file names that assign a file of a folder to a split."""
ENDINGS = (".bin", ".npy")


@register("task", "tokens")
class TokensTask(NextTokenTask):
    """Predict the next token of text that another program turned into tokens.

    Reads nanoGPT's `train.bin` and `val.bin`, shards of llm.c and modded-nanogpt, `.npy` files with and without NumPy's
    header, and Megatron's `.bin` with `.idx`. Files are memory-mapped. Files of a folder or pattern with `val` in their
    names are validation data. Those with `test` are not trained either; `test_source` names them.
    """

    source: Annotated[
        Sources | Weights,
        Field(description="files, patterns such as data/*.bin, folders, hf:// or gs://, or a mixture {source: weight}"),
    ]
    val_source: Sources = ()
    """Files of validation tokens, if `source` does not name them."""
    test_source: Sources = ()
    """Files of test tokens."""
    dtype: Dtype | None = None
    """Type of the tokens in files without a header; `none`: uint16, or uint32 for vocabularies above 65536."""
    vocab_size: Size
    """Number of different tokens."""
    end_token: Annotated[int, Field(ge=0)] | None = None
    """Token that ends a document."""
    val: Share = 0.0
    """Share of the tokens for validation, from the end of `source`."""
    test: Share = 0.0
    """Share of the tokens for testing, from the end of `source`."""
    eval_tokens: Count = 2**20
    """Maximum number of tokens of an evaluation split: its first ones."""
    train_tokens: Count | None = None
    """Number of training tokens (of each source): the first ones. Evaluation data stay the same."""
    segments: bool = False
    """Whether batches contain the document of each token (requires `end_token`)."""

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """See `Task.evaluation_sets`."""
        return self.sets_of(val=True, test=self.test or self.test_source)

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(segments=self.segments, prefix=self.objective.has_prefix)

    def special_tokens(self, source: Any) -> Collection[int]:
        """See `NextTokenTask.special_tokens`."""
        return () if self.end_token is None else (self.end_token,)

    def read(self, folder: Path) -> StreamSource:
        """See `NextTokenTask.read`."""
        if self.segments and self.end_token is None:
            problem = "segments need the token that ends a document"
            raise UserError(problem, path=("segments",), remedy="Set `end_token`, or remove `segments`.")
        self.shares({}, "tokens")
        if self.end_token is not None and self.end_token >= self.vocab_size:
            problem = f"end_token {self.end_token} is beyond the vocabulary of {self.vocab_size} tokens"
            raise UserError(problem, path=("end_token",), remedy=f"Use a token below {self.vocab_size}.")
        sources = self._open(folder)
        divided = {name: self._divide(files, len(sources)) for name, files in sources.items()}
        parts = {name: streams["train"] for name, streams in divided.items()}
        streams = {name: join_streams(part[name] for part in divided.values()) for name in NAMED}
        named = [f"train split of {name!r}" if name else "train split" for name in parts]
        checked = {
            **dict(zip(named, parts.values(), strict=True)),
            **{f"{name} split": streams[name] for name in EVALUATED},
        }
        for name, stream in checked.items():
            if name == "val split" and not len(stream):
                problem = f"there are no validation tokens: no file of {self.source!r} is named val"
                raise UserError(problem, path=("val",), remedy="Set `val` to a share, or `val_source` to files.")
            if len(stream) <= self.seq_len and (name != "test split" or len(stream)):
                problem = f"the {name} has {len(stream):,} tokens, so no window of {self.seq_len} has targets"
                raise UserError(problem, path=("seq_len",), remedy="Use a smaller seq_len, or more tokens.")
        for i, length in enumerate(self.eval_lengths):
            if len(streams["val"]) <= length:
                problem = f"the val split has {len(streams['val']):,} tokens, so no sequence of {length} has targets"
                raise UserError(problem, path=("eval_lengths", i), remedy="Use a shorter length, or more tokens.")
        sizes = {name: len(part) for name, part in parts.items()}
        files = {name: [file for part in sources.values() for file in part[name]] for name in NAMED}
        facts = {
            "source": ", ".join(file.path.name for file in files["train"][:3]),
            "files": {name: len(part) for name, part in files.items()},
            "layout": files["train"][0].layout,
            "dtype": files["train"][0].tokens.dtype.name,
            **self._origins(folder),
        }
        return StreamSource(
            streams, self.seq_len, self.vocab_size, facts,
            digest=" ".join(digest_tokens(file).sha256 for file in files["train"]),
            unit=f"{self.vocab_size} tokens, numbered",
            end_token=self.end_token if self.segments else None, eval_lengths=self.eval_lengths,
            mixture=mix(self.source, sizes, count_windows(sizes, self.seq_len)),
        )  # fmt: skip

    def _origins(self, folder: Path) -> dict[str, Any]:
        """Return the fact `fetched`: where files are from that are downloaded; empty without any."""
        given = {"train": self.source, "val": self.val_source, "test": self.test_source}
        known = {name: describe_origins(names_of(sources), folder, ENDINGS) for name, sources in given.items()}
        fetched = {name: about for name, about in known.items() if about}
        return {"fetched": fetched} if fetched else {}

    def files(self, folder: Path) -> list[Path]:
        """See `Task.files`. Megatron's indices are read as well."""
        paths = [path for part in self._find(folder, local=True).values() for files in part.values() for path in files]
        indices = [path.with_suffix(".idx") for path in paths if path.suffix == ".bin"]
        return [*paths, *filter(Path.is_file, indices)]

    def digests(self, folder: Path) -> dict[str, str]:
        """See `Task.digests`. Those of tokens are known since `prepare`."""
        digests = {}
        for path in self.files(folder):
            index = path.suffix == ".idx"
            digest = digest_file(path) if index else digest_tokens(open_token_file(path, self._dtype)).sha256
            digests[os.path.relpath(path, folder)] = digest
        return digests

    @property
    def _dtype(self) -> Dtype | None:
        return self.dtype or ("uint32" if self.vocab_size > 2**16 else None)

    def _find(self, folder: Path, *, local: bool = False) -> dict[str, dict[str, list[Path]]]:
        """Return the paths of the files of each split, for each source of a mixture, or for the only one.

        With `local`, only those that are not downloaded.
        """
        named = {name: name for name in self.source} if isinstance(self.source, dict) else {"": self.source}
        sources = {
            name: find_files(_local(source) if local else source, folder, "source") for name, source in named.items()
        }
        if isinstance(self.source, dict):
            refuse_shared({name: chain.from_iterable(paths.values()) for name, paths in sources.items()})
        first = next(iter(sources.values()))
        for name, given in (("val", self.val_source), ("test", self.test_source)):
            if given:
                for paths in sources.values():
                    paths[name] = []
                wanted = _local(given) if local else given
                first[name] = find_files(wanted, folder, f"{name}_source", divide=False, split=name)["train"]
            for paths in sources.values():
                if paths[name] and getattr(self, name):
                    problem = f"{name} {getattr(self, name)} is a share of `source`, but {name} has files of its own"
                    raise UserError(problem, path=(name,), remedy=f"Remove {name}: {paths[name][0].name} is used.")
        return sources

    def _open(self, folder: Path) -> dict[str, dict[str, list[TokenFile]]]:
        """Return the opened and checked files of each split of each source.

        Sources are ordered by the digests of their training files, so that an identity does not depend on names.
        """
        sources: dict[str, dict[str, list[TokenFile]]] = {}
        for source, paths in self._find(folder).items():
            files = sources.setdefault(source, {})
            for name, chosen in paths.items():
                where = f"{name}_source" if getattr(self, f"{name}_source", ()) else "source"
                files[name] = [self._checked(path, self._dtype, where) for path in chosen]
        kinds = {file.tokens.dtype.name: file for files in sources.values() for part in files.values() for file in part}
        if len(kinds) > 1:
            seen = " and ".join(f"{file.path} {name}" for name, file in kinds.items())
            raise UserError(f"{seen}: files of one task have one type", path=("source",), remedy="Convert one of them.")
        digests = {name: [digest_tokens(file).sha256 for file in files["train"]] for name, files in sources.items()}
        return {name: sources[name] for name in sorted(sources, key=digests.__getitem__)}

    def _checked(self, path: Path, dtype: Dtype | None, where: str) -> TokenFile:
        with change_errors(lambda error: error if error.path else error.within(where)):
            file = open_token_file(path, dtype)
        check_dtype(file, self.vocab_size)
        digest = digest_tokens(file)
        if digest.smallest < 0:
            problem = f"token {digest.smallest:,} at place {digest.smallest_at:,} of {path} is below 0"
            raise UserError(problem, path=(where,), remedy="Write the file again without fill values.")
        if digest.largest >= self.vocab_size:
            problem = f"token {digest.largest:,} at place {digest.at:,} of {path} is beyond {self.vocab_size:,} tokens"
            remedy = f"Set vocab_size to {digest.largest + 1} or more, or dtype to the type of the tokens."
            raise UserError(problem, path=("vocab_size",), remedy=remedy)
        return file

    def _divide(self, files: Mapping[str, list[TokenFile]], sources: int) -> dict[str, TokenStream]:
        """Return the streams of the splits of one source.

        Shares are taken from the end. Evaluation splits are cropped, and those of shares have equal parts of all
        sources.
        """
        streams = {name: TokenStream([file.tokens for file in part]) for name, part in files.items()}
        if not self.test_source:
            streams["test"] = TokenStream([])
        whole = streams["train"]
        total = len(whole)
        first, second = round(total * (1 - self.val - self.test)), round(total * (1 - self.test))
        if self.val:
            streams["val"] = whole.part(first, second)
        if self.test:
            streams["test"] = whole.part(second, total)
        if self.val or self.test:
            streams["train"] = whole.part(0, first if self.val else second)
        for name in EVALUATED:
            limit = self.eval_tokens if getattr(self, f"{name}_source") else max(self.eval_tokens // sources, 1)
            streams[name] = streams[name].part(0, limit)
        if self.train_tokens is not None:
            check_crop("train_tokens", self.train_tokens, len(streams["train"]))
            streams["train"] = streams["train"].part(0, self.train_tokens)
        return streams


def _local(sources: Sources) -> tuple[str, ...]:
    """Return the sources that are paths."""
    return tuple(name for name in names_of(sources) if not is_remote(name))


def find_files(
    sources: Sources, folder: Path, field: str, *, divide: bool = True, split: str = "train"
) -> dict[str, list[Path]]:
    """Return the files of each split, in the order given; files of a folder or pattern by name.

    Args:
        sources: files, patterns or folders.
        folder: the folder to which they are relative.
        field: the field of the task, for errors.
        divide: whether the names of files in folders and patterns assign them to splits.
        split: without `divide`, the split to read of datasets that have several.

    Raises:
        UserError: if a source does not exist, or if no training file is left.
    """
    files: dict[str, list[Path]] = {name: [] for name in NAMED}
    for i, source in enumerate((sources,) if isinstance(sources, str) else sources):
        where = (field,) if isinstance(sources, str) else (field, i)
        if is_remote(source):
            with locate_errors(*where):
                _add_fetched(files, fetch(source, folder, ENDINGS), divide, split)
            continue
        path = folder / Path(source).expanduser()
        if path.is_file():
            files["train"].append(path)
            continue
        if path.is_dir():
            listed = [file for ending in ENDINGS for file in path.glob(f"[!.]*{ending}")]
        else:
            listed = [*path.parent.glob(path.name)] if any(sign in path.name for sign in "*?[") else []
        if not (listed := sorted(file for file in listed if file.is_file())):
            problem = f"no token files at {source!r} (searched for {path})"
            remedy = f"Use a path relative to the study's folder, of files that end in {' or '.join(ENDINGS)}."
            raise UserError(problem, path=where, remedy=remedy)
        for file in listed:
            files[split_of(file) if divide else "train"].append(file)
    if sources and not files["train"]:
        problem = f"the files of {field} are named as evaluation data: {(files['val'] or files['test'])[0].name}"
        raise UserError(problem, path=(field,), remedy="Name training files as well, or list the files one by one.")
    return files


def _add_fetched(files: dict[str, list[Path]], fetched: Fetched, divide: bool, split: str) -> None:
    """Add the files of a source that is downloaded: a dataset's own splits, or files that it names, by their names."""
    splits = [name for name in ("train", "val") if fetched.own_split(name)]
    if divide and "train" in splits:
        for name in splits:
            files[name] += [path for _, path in fetched.files(name)]
        return
    listed = [path for _, path in fetched.files(split)]
    for path in listed:
        files[split_of(path) if divide and len(listed) > 1 else "train"].append(path)


def split_of(file: Path) -> str:
    """Return the split of a file in a folder, by the words of its name."""
    words = "".join(char if char.isalnum() else " " for char in file.stem.lower()).split()
    return next((name for name in ("test", "val") if set(words) & {*NAMED[name]}), "train")
