"""Flags of XLA and libtpu: tried before anything starts, set in the environment, and what results depend on of them.

XLA reads `XLA_FLAGS` once, when its backend starts, and ends the process at a flag that it does not know; libtpu does
the same with `LIBTPU_INIT_ARGS`. So they are tried in a child process first. Imports no jax.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from taetpu.core.devices import DEV, find_accelerators
from taetpu.core.errors import UserError

XLA, LIBTPU = "XLA_FLAGS", "LIBTPU_INIT_ARGS"
OPTIONS = {XLA: "--xla-flags", LIBTPU: "--libtpu-args"}
# What changes no program: how many devices a CPU is made into, which a pack's layout says, and where dumps go.
WITHOUT_EFFECT = ("--xla_force_host_platform_device_count", "--xla_dump_")
NOT_FOR_TPUS = ("--xla_cpu_", "--xla_gpu_")  # what changes no program for TPUs
PROBES = {
    XLA: "import jax; jax.devices()",
    LIBTPU: "from jax.experimental import topologies as t; "
    "t.get_topology_desc(platform='tpu', topology_name='v5e:2x2')",
}
PROBE_SECONDS = 120  # seconds


def program_flags(environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """The flags that programs here may depend on, by variable; a variable without any is left out."""
    found = {name.lower(): relevant_flags(environ.get(name, "")) for name in OPTIONS}
    return {name: given for name, given in found.items() if given}


def relevant_flags(text: str) -> list[str]:
    """The flags in a variable's text that a program may depend on, in their order: the last of a name holds."""
    return [flag for flag in shlex.split(text) if not flag.startswith(WITHOUT_EFFECT)]


def tpu_flags(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with the flags that a program for TPUs may depend on; without those that would then be empty."""
    found = {
        name: [flag for flag in given if not flag.startswith(NOT_FOR_TPUS)]
        for name, given in program_flags(environ).items()
    }
    return {name.upper(): shlex.join(given) for name, given in found.items() if given}


def set_flags(
    xla: str = "",
    libtpu: str = "",
    dev: Path = DEV,
    environ: MutableMapping[str, str] = os.environ,
    *,
    compiles: bool = False,
) -> None:
    """Add flags to those of the environment. To be called before jax is imported.

    All that is set then is tried in a child process, that of the environment, too.

    Args:
        compiles: libtpu is asked to compile, be there a TPU or none.

    Raises:
        UserError: a flag is not known, or not read by anything here.
    """
    has_tpu = compiles or any(found.kind == "TPU" for found in find_accelerators(dev))
    if libtpu and not has_tpu:
        problem = f"--libtpu-args {libtpu!r}: this machine has no TPU, so that nothing would read it"
        raise UserError(problem, path=("--libtpu-args",), remedy="leave it out, or --xla-flags for XLA's own flags")
    for name, given in ((XLA, xla), (LIBTPU, libtpu)):
        together = " ".join(part for part in (environ.get(name, ""), given) if part)
        if relevant_flags(together) and (name == XLA or has_tpu):
            check_flags(name, together, environ)
        if given:
            environ[name] = together


def check_flags(name: str, text: str, environ: Mapping[str, str] = os.environ) -> None:
    """See in a child process whether a variable's flags are accepted.

    Raises:
        UserError: they are not; it names the flag.
    """
    if bad := next((flag for flag in shlex.split(text) if not flag.startswith("--")), None):
        raise _refused(
            name, f"{bad!r} is no flag", f"write flags as --name=value, {OPTIONS[name]} ... together in quotes"
        )
    if name == LIBTPU and find_spec("libtpu") is None:
        raise _refused(name, "libtpu is not installed", "pip install 'taetpu[tpu]'")
    own = {key: value for key, value in environ.items() if key not in OPTIONS}
    own |= {name: text, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    if name == LIBTPU:  # as on a machine without one: the chips are not touched
        own |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
                "TPU_ACCELERATOR_TYPE": "v5litepod-4", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # fmt: skip
    command = [sys.executable, "-P", "-c", PROBES[name]]
    try:
        ended = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise _refused(name, f"XLA did not start within {PROBE_SECONDS} s with {text}", "try fewer flags") from None
    if ended.returncode:
        raise _refused(name, *_explained(name, shlex.split(text), ended.stderr))


def _explained(name: str, given: Sequence[str], said: str) -> tuple[str, str]:
    """What is wrong, and what would be right, from what the child wrote in the end."""
    library = "libtpu" if name == LIBTPU else "jaxlib"
    what = f"{library} {version(library)}"
    unknown = re.search(r"Unknown (?:command line )?flags? (?:in \w+: )?(.*)", said)
    wrong = re.search(r"Couldn't interpret value (.*?) for flag (\w+)|ERROR: (?:Illegal|Invalid) value.*", said)
    if unknown:
        words = {word.lstrip("-").split("=")[0] for word in re.findall(r"[\w-]+", unknown[1])}
        named = [flag for flag in given if flag.lstrip("-").split("=")[0] in words] or [unknown[1]]
        return f"{what} knows no flag {', '.join(named)}", "check its spelling; flags come and go with versions"
    if wrong:
        return f"{what} cannot use a value: {wrong[0].rstrip('.')}", "give the flag a value of its type"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return f"{what} does not start with {' '.join(given)}: {last[:300]}", "try the flags one by one"


def _refused(name: str, problem: str, remedy: str) -> UserError:
    return UserError(problem, path=(f"{OPTIONS[name]} or {name}",), remedy=remedy)


# --- dumps -----------------------------------------------------------------------------------------------------------


def enable_dumps(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have XLA write down every program that it compiles in this process. To be called before jax is imported.

    Programs are compiled anew: those that the cache has would not be written.
    """
    environ[XLA] = f"{environ.get(XLA, '')} --xla_dump_to={shlex.quote(str(folder))}".strip()
    environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def environment_without_dumps(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child process whose programs are nobody's business."""
    kept = [flag for flag in shlex.split(environ.get(XLA, "")) if not flag.startswith("--xla_dump_")]
    return {**environ, XLA: shlex.join(kept)} if XLA in environ else dict(environ)


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files lie below a folder, and their bytes together."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)
