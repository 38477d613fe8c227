"""Flags for XLA and libtpu, which are checked in a child process, set in the environment and recorded with results.

XLA reads `XLA_FLAGS` once, when its backend starts, and aborts the process if a flag is unknown. libtpu does the
same with `LIBTPU_INIT_ARGS`. This module does not import jax.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from taetpu.core.accelerators import DEV, find_accelerators
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder

XLA, LIBTPU = "XLA_FLAGS", "LIBTPU_INIT_ARGS"
OPTIONS = {XLA: "--xla-flags", LIBTPU: "--libtpu-args"}
# Flags that do not change programs: dump options and the number of CPU devices. A pack's layout records this number.
WITHOUT_EFFECT = ("--xla_force_host_platform_device_count", "--xla_dump_")
NOT_FOR_TPUS = ("--xla_cpu_", "--xla_gpu_")  # flags that do not change programs for TPUs
PROBES = {
    XLA: "import jax; jax.devices()",
    LIBTPU: "from jax.experimental import topologies as t; "
    "t.get_topology_desc(platform='tpu', topology_name='v5e:2x2')",
}
PROBE_SECONDS = 120  # time limit of a check


def program_flags(environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """Return the flags that can affect this process's programs, by lower-case variable name; omit empty variables."""
    flags = {name.lower(): relevant_flags(environ.get(name, "")) for name in OPTIONS}
    return {name: given for name, given in flags.items() if given}


def relevant_flags(text: str) -> list[str]:
    """Return the flags in `text` that can affect a program, in order. If a flag is repeated, the last takes effect."""
    return [flag for flag in shlex.split(text) if not flag.startswith(WITHOUT_EFFECT)]


def tpu_flags(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables with the flags that can affect a TPU program; omit empty variables."""
    flags = {
        name: [flag for flag in given if not flag.startswith(NOT_FOR_TPUS)]
        for name, given in program_flags(environ).items()
    }
    return {name.upper(): shlex.join(given) for name, given in flags.items() if given}


def set_flags(
    xla: str = "",
    libtpu: str = "",
    dev: Path = DEV,
    environ: MutableMapping[str, str] = os.environ,
    *,
    compiles: bool = False,
) -> None:
    """Add flags to the environment, after checking all flags together. Call this before importing jax.

    Args:
        xla: Flags for `XLA_FLAGS`.
        libtpu: Flags for `LIBTPU_INIT_ARGS`.
        dev: The folder with the device files.
        environ: The environment to change.
        compiles: Whether libtpu compiles on this machine even without a TPU.

    Raises:
        UserError: if a flag is rejected, or if libtpu flags are given on a machine that does not use libtpu.
    """
    has_tpu = compiles or any(device.kind == "TPU" for device in find_accelerators(dev))
    if libtpu and not has_tpu:
        problem = f"`--libtpu-args={libtpu}` requires a TPU, but this machine has none"
        remedy = "Omit --libtpu-args, or use --xla-flags for flags of XLA."
        raise UserError(problem, path=("--libtpu-args",), remedy=remedy)
    for name, given in ((XLA, xla), (LIBTPU, libtpu)):
        together = " ".join(part for part in (environ.get(name, ""), given) if part)
        if relevant_flags(together) and (name == XLA or has_tpu):
            check_flags(name, together, environ)
        if given:
            environ[name] = together


def check_flags(name: str, text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Check the flags of a variable by starting the library that reads it in a child process.

    The start takes seconds, so flags that were accepted are remembered in the cache folder.

    Raises:
        UserError: if a flag is rejected, or if the library is not installed.
    """
    if bad := next((flag for flag in shlex.split(text) if not flag.startswith("--")), None):
        remedy = f"Write flags as --name=value, and quote all flags of {OPTIONS[name]} together."
        raise _error(name, f"{bad!r} is not a flag", remedy)
    if name == LIBTPU and find_spec("libtpu") is None:
        raise _error(name, "libtpu is not installed", "Run pip install 'taetpu[tpu]'.")
    library = version("libtpu" if name == LIBTPU else "jaxlib")
    accepted = cache_folder() / "flags" / sha256(f"{name} {library} {text}".encode()).hexdigest()
    if accepted.exists():
        return
    env = {key: value for key, value in environ.items() if key not in OPTIONS}
    env |= {name: text, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    if name == LIBTPU:  # simulate a machine without a TPU, so that the chips stay free
        env |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
                "TPU_ACCELERATOR_TYPE": "v5litepod-4", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # fmt: skip
    command = [sys.executable, "-P", "-c", PROBES[name]]
    try:
        ended = subprocess.run(
            command,
            env=env,
            capture_output=True,
            check=False,
            timeout=PROBE_SECONDS,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise _error(name, f"XLA did not start within {PROBE_SECONDS} s with {text}", "Use fewer flags.") from None
    if ended.returncode:
        raise _error(name, *_explain_output(name, shlex.split(text), ended.stderr))
    with suppress(OSError):  # without a cache folder, the next process checks again
        accepted.parent.mkdir(parents=True, exist_ok=True)
        accepted.touch()


def _explain_output(name: str, given: Sequence[str], output: str) -> tuple[str, str]:
    """Return the problem and the remedy that the child's error output implies."""
    library = "libtpu" if name == LIBTPU else "jaxlib"
    what = f"{library} {version(library)}"
    unknown = re.search(r"Unknown (?:command line )?flags? (?:in \w+: )?(.*)", output)
    wrong = re.search(r"Couldn't interpret value (.*?) for flag (\w+)|ERROR: (?:Illegal|Invalid) value.*", output)
    if unknown:
        words = {word.lstrip("-").split("=")[0] for word in re.findall(r"[\w-]+", unknown[1])}
        named = [flag for flag in given if flag.lstrip("-").split("=")[0] in words] or [unknown[1]]
        return f"{what} has no flag {', '.join(named)}", "Check the spelling. Flags differ between versions."
    if wrong:
        return f"{what} rejects a value: {wrong[0].rstrip('.')}", "Use a value of the flag's type."
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"{what} does not start with {' '.join(given)}: {last[:300]}", "Try the flags one by one."


def _error(name: str, problem: str, remedy: str) -> UserError:
    return UserError(problem, path=(f"{OPTIONS[name]} or {name}",), remedy=remedy)


# --- dumps -----------------------------------------------------------------------------------------------------------


def enable_dumps(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make XLA dump every program that it compiles in this process. Call this before importing jax.

    This disables the compilation cache, because cached programs would not be dumped.
    """
    environ[XLA] = f"{environ.get(XLA, '')} --xla_dump_to={shlex.quote(str(folder))}".strip()
    environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def folder_size(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder, and their total size in bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)
