"""Run the TPU compiler in child processes, and cache its answers on disk."""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from taetpu.core.child_process import Child, ChildFailed, child_command
from taetpu.core.chips import Slice
from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import canonical_json
from taetpu.core.jax_setup import cpu_cores
from taetpu.core.static_dynamic import split
from taetpu.core.xla_flags import OPTIONS, tpu_flags
from taetpu.data.base import Source, array_shapes
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.run_ids import plugin_sources
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.remembered import recall, remember
from taetpu.train.layout import Layout

Facts = Mapping[str, Any]
"""The compiler's report on a program; see `tpu.compile_worker.compile_request`."""
MAX_CHILDREN = 2
"""Maximum number of child processes. A compilation uses about one core, and may need gigabytes of memory."""


@dataclass(frozen=True)
class CompileRequest:
    """A pack's program, and the TPU slice for which the program is compiled.

    Attributes:
        config: configuration of any run in the pack.
        live: paths of the numbers that are inputs to the program; see `core.static_dynamic`.
        folder: base folder for relative paths in the task.
        plugins: the study's plug-in files.
        seed: the seed whose start model has the task's tokenizer (see `spec.resolved_study.Sources`).
    """

    config: ResolvedConfig
    source: Source
    live: frozenset[str]
    precision: str
    execution: ComputeOptions
    layout: Layout
    tpu: Slice
    folder: Path
    plugins: tuple[Path, ...]
    seed: int = 0

    def data(self) -> dict[str, Any]:
        """Return the request as plain data, to be sent to another process."""
        return {
            "config": to_data(self.config),
            "live": sorted(self.live),
            "precision": self.precision,
            "execution": asdict(self.execution),
            "layout": asdict(self.layout),
            "tpu": self.tpu.topology_name,
            "folder": str(self.folder),
            "plugins": [str(file) for file in self.plugins],
            "seed": self.seed,
        }

    @cached_property
    def key(self) -> str:
        """Hash of everything that determines the answer: program structure, slice, flags, source code and versions."""
        arrays = {name: [list(array.shape), str(array.dtype)] for name, array in array_shapes(self.source).items()}
        inputs = {
            "structure": to_data(split(self.config, self.live)[0]),
            "precision": self.precision,
            "execution": asdict(self.execution),
            "layout": asdict(self.layout),
            "tpu": [self.tpu.topology_name, self.tpu.topology_options],
            "task": [asdict(self.source.interface), self.source.seq_len, arrays],
            "flags": tpu_flags(),
            "plugins": plugin_sources(self.config),
            "versions": [version("jax"), version("jaxlib"), _libtpu_version()],
            "taetpu": _source_hash(),
        }
        return sha256(canonical_json(json.loads(json.dumps(inputs))).encode()).hexdigest()[:24]


def _libtpu_version() -> str:
    """Return the compiler's version.

    Raises:
        UserError: if the compiler is not installed.
    """
    try:
        return version("libtpu")
    except PackageNotFoundError:
        remedy = "Install libtpu with `pip install 'taetpu[preflight]'` (Linux on x86-64)."
        raise UserError("the TPU compiler (libtpu) is not installed", remedy=remedy) from None


@cache
def _source_hash() -> str:
    """Return the SHA-256 of the source files in the packages that determine a program."""
    digest = sha256()
    for package in ("core", "nn", "optim", "data", "spec", "train", "tpu"):
        folder = Path(str(files("taetpu").joinpath(package)))
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def environment(tpu: Slice) -> dict[str, str]:
    """Return environment variables that let libtpu compile without a TPU and without log output.

    The variables include the XLA and libtpu flags that training on a TPU uses.
    """
    quiet = {f"{name}_MIN_LOG_LEVEL": "3" for name in ("TPU", "TF_CPP")} | {"TPU_STDERR_LOG_LEVEL": "3"}
    return {
        **{name: value for name, value in os.environ.items() if name not in OPTIONS},
        **tpu_flags(),
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
    """Context manager that answers requests from the cache, or compiles their programs in child processes.

    The child processes end when the context exits.

    Args:
        on_progress: called with the number of answered requests and the total number of requests.
    """

    def __init__(self, on_progress: Callable[[int, int], None] = lambda done, total: None):
        self.on_progress, self.done, self.total = on_progress, 0, 0
        self.lock = threading.Lock()
        self.children: dict[tuple[int, str], Child] = {}
        self.pool = ThreadPoolExecutor(min(MAX_CHILDREN, cpu_cores()))

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self.children.values()):
            child.close()

    def compile_all(self, requests: Sequence[CompileRequest]) -> list[Facts]:
        """Return the facts about each request's program.

        The facts have an `error` if the program does not compile, and `too_large` if it exceeds the device's memory.
        """
        self.total += len(requests)
        unique = {request.key: request for request in requests}
        facts: dict[str, Facts] = {
            key: cached for key in unique if (cached := recall(f"preflight/{key}.json")) is not None
        }
        self._count(sum(request.key in facts for request in requests))
        pending = {key: self.pool.submit(self._ask, request) for key, request in unique.items() if key not in facts}
        for key, answer in pending.items():
            facts[key] = answer.result()
            self._count(sum(request.key == key for request in requests))
        return [facts[request.key] for request in requests]

    def compile(self, request: CompileRequest) -> Facts:
        """Return the facts about the program of one request; see `compile_all`."""
        return self.compile_all([request])[0]

    def _count(self, number: int) -> None:
        self.done += number
        self.on_progress(self.done, self.total)

    def _ask(self, request: CompileRequest) -> Facts:
        owner = threading.get_ident(), request.tpu.generation.name
        try:
            if owner not in self.children:
                self._close_child(owner[0])
                self.children[owner] = Child(
                    child_command("taetpu.tpu.compile_worker"), environ=environment(request.tpu)
                )
            answer = self.children[owner].ask(request.data())
        except (ChildFailed, MemoryError) as error:  # the compiler crashed or was killed
            if child := self.children.pop(owner, None):
                child.close()
            return {"error": f"the compiler crashed: {str(error).strip()[-300:]}"}
        if "trace" not in answer:
            remember(f"preflight/{request.key}.json", answer)
        return answer

    def _close_child(self, thread: int) -> None:
        """Close the thread's child process for any other TPU generation. Each child holds a compiler in memory."""
        for owner in [owner for owner in self.children if owner[0] == thread]:
            self.children.pop(owner).close()
