"""Asking the TPU compiler: child processes that hold it, and what it has said before, kept in the cache folder."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from taetpu.core.child import Child, ChildFailed, child_command
from taetpu.core.chips import Slice
from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.flags import OPTIONS, for_tpus
from taetpu.core.runtime import cache_folder, cores
from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source
from taetpu.nn.compute_options import Execution
from taetpu.spec.identity import canonical, plugin_sources
from taetpu.spec.schema import ResolvedConfig
from taetpu.store.backend import open_store
from taetpu.store.documents import from_json, to_json
from taetpu.train.layout import Layout

Facts = Mapping[str, Any]
"""What the compiler said of a program; see `tpu.compile_worker.compiled`."""
MOST_CHILDREN = 2
"""A compile keeps about a core busy, and some hold gigabytes."""


@dataclass(frozen=True)
class CompileRequest:
    """A pack's program, to be compiled for a slice.

    Attributes:
        config: one run's, which stands for all of the pack.
        live, precision, execution: see `train.plan.PackPlan`.
        folder: where the task's paths start.
        plugins: the plug-ins of the study.
    """

    config: ResolvedConfig
    source: Source
    live: frozenset[str]
    precision: str
    execution: Execution
    layout: Layout
    tpu: Slice
    folder: Path
    plugins: tuple[Path, ...]

    def data(self) -> dict[str, Any]:
        """All that another process needs to compile it."""
        return {
            "config": to_data(self.config),
            "live": sorted(self.live),
            "precision": self.precision,
            "execution": asdict(self.execution),
            "layout": asdict(self.layout),
            "tpu": self.tpu.topology_name,
            "folder": str(self.folder),
            "plugins": [str(file) for file in self.plugins],
        }

    @cached_property
    def key(self) -> str:
        """Equal for requests that the compiler answers alike: the program's structure, the slice, and all versions."""
        arrays = {name: [list(array.shape), str(array.dtype)] for name, array in self.source.arrays.items()}
        about = {
            "structure": to_data(split(self.config, self.live)[0]),
            "precision": self.precision,
            "execution": asdict(self.execution),
            "layout": asdict(self.layout),
            "tpu": [self.tpu.topology_name, self.tpu.topology_options],
            "task": [self.source.vocab_size, self.source.seq_len, arrays],
            "flags": for_tpus(),
            "plugins": plugin_sources(self.config),
            "versions": [version("jax"), version("jaxlib"), _libtpu()],
            "taetpu": _own_source(),
        }
        return sha256(canonical(json.loads(json.dumps(about))).encode()).hexdigest()[:24]


def _libtpu() -> str:
    """The compiler's version.

    Raises:
        UserError: it is not installed.
    """
    try:
        return version("libtpu")
    except PackageNotFoundError:
        remedy = "pip install 'taetpu[preflight]', which brings libtpu (Linux on x86-64)"
        raise UserError("the TPU compiler is not installed", remedy=remedy) from None


@cache
def _own_source() -> str:
    """sha256 of the code that programs are made by."""
    found = sha256()
    for package in ("core", "nn", "optim", "data", "spec", "train", "tpu"):
        folder = Path(str(files("taetpu").joinpath(package)))
        for file in sorted(folder.glob("*.py")):
            found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def environment(tpu: Slice) -> dict[str, str]:
    """What a process needs so that libtpu compiles on a machine without a TPU, and says nothing of that.

    The flags for XLA and libtpu are those of training, as far as they concern TPUs.
    """
    quiet = {f"{name}_MIN_LOG_LEVEL": "3" for name in ("TPU", "TF_CPP")} | {"TPU_STDERR_LOG_LEVEL": "3"}
    return {
        **{name: value for name, value in os.environ.items() if name not in OPTIONS},
        **for_tpus(),
        **quiet,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": tpu.name,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


class Compiler:
    """Answers requests, from what is known or by compiling. A context manager: its processes end with it.

    Args:
        told: called with how many requests are answered, and of how many.
    """

    def __init__(self, told: Callable[[int, int], None] = lambda done, of: None):
        self.told, self.done, self.of = told, 0, 0
        self.lock = threading.Lock()
        self.children: dict[tuple[int, str], Child] = {}
        self.pool = ThreadPoolExecutor(min(MOST_CHILDREN, cores()))

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self.children.values()):
            child.close()

    def compile_all(self, requests: Sequence[CompileRequest]) -> list[Facts]:
        """What the compiler says of each. A program that it fails on has an `error`, and `too_large` where memory does
        not suffice.
        """
        self.of += len(requests)
        once = {request.key: request for request in requests}
        known = {key: kept for key in once if (kept := _recall(key)) is not None}
        self._count(sum(request.key in known for request in requests))
        asked = {key: self.pool.submit(self._ask, request) for key, request in once.items() if key not in known}
        for key, answer in asked.items():
            known[key] = answer.result()
            self._count(sum(request.key == key for request in requests))
        return [known[request.key] for request in requests]

    def compile(self, request: CompileRequest) -> Facts:
        return self.compile_all([request])[0]

    def _count(self, number: int) -> None:
        self.done += number
        self.told(self.done, self.of)

    def _ask(self, request: CompileRequest) -> Facts:
        who = threading.get_ident(), request.tpu.generation.name
        try:
            if who not in self.children:
                self._retire(who[0])
                self.children[who] = Child(child_command("taetpu.tpu.compile_worker"), environ=environment(request.tpu))
            answer = self.children[who].ask(request.data())
        except (ChildFailed, MemoryError) as error:  # the compiler took its process with it, or was killed
            if child := self.children.pop(who, None):
                child.close()
            return {"error": _ended(str(error))}
        if "trace" not in answer:
            _keep(request.key, answer)
        return answer

    def _retire(self, thread: int) -> None:
        """End the child that this thread has for another generation: each holds a compiler."""
        for who in [who for who in self.children if who[0] == thread]:
            self.children.pop(who).close()


def _ended(why: str) -> str:
    """How the compiler's process ended, its last words, and what may help; `why` as `core.child.Child` says it."""
    how, _, words = why.strip().removeprefix("the process ended ").partition(":")
    last = (words.strip().splitlines() or [""])[-1][:300]
    remedy = "this machine's memory may be too small for it" if "SIGKILL" in how else "another slice may compile"
    return f"the compiler{' was' if how.startswith('killed') else ' ended'} {how}{': ' if last else ''}{last}; {remedy}"


def _where(key: str) -> str:
    return f"preflight/{key}.json"


def _recall(key: str) -> Facts | None:
    store = open_store(cache_folder())
    try:
        return from_json(store.read(_where(key)), store.where(_where(key))) if store.exists(_where(key)) else None
    except UserError:  # damaged: it will be written anew
        return None


def _keep(key: str, facts: Facts) -> None:
    with suppress(UserError):  # a cache that cannot be written costs time alone
        open_store(cache_folder()).write(_where(key), to_json(dict(facts)), replace=True)


def failures(answers: Iterable[Facts]) -> list[str]:
    """Why programs could not be compiled, memory apart."""
    return list(dict.fromkeys(a["error"] for a in answers if "error" in a and "too_large" not in a))
