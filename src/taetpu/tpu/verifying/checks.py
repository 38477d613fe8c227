"""What a check is, and what comes of one."""

import traceback
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from taetpu.core.errors import UserError, suggest

Status = Literal["ok", "slow", "FAILED", "skipped"]
Group = Literal["machine", "jax", "torch"]


@dataclass(frozen=True)
class Finding:
    """What a check came to.

    Attributes:
        status: `slow` is right, but far from what the device is published to reach.
        figure: what was measured, or what is wrong, for people.
        values: the same as plain data, in base units.
        remedy: what to do about it, where that is more than the check's own remedy.
    """

    status: Status
    figure: str
    values: dict[str, Any] = field(default_factory=dict)
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """One thing that is looked at.

    Attributes:
        name: one word; its section in docs/verify.md.
        about: what is looked at.
        function: gives the finding, or raises; as `module.function` of this package, imported when it is called.
        seconds: after so long without an answer it has failed.
        remedy: the first thing to do where it failed.
    """

    name: str
    about: str
    function: str
    seconds: float
    remedy: str

    @property
    def group(self) -> Group:
        """Where it is made: in the command's own process, or in a child with jax or torch, which has the device and may
        hang, or be ended by a driver.
        """
        module = self.function.partition(".")[0]
        return "machine" if module == "machine" else "torch" if module == "pytorch" else "jax"

    def make(self) -> Finding:
        """What comes of it; an exception is a failure like any other."""
        module, _, name = self.function.partition(".")
        try:
            return getattr(import_module(f"taetpu.tpu.verifying.{module}"), name)()
        except Exception as error:
            told = (str(error).strip() or "no message").splitlines()[0]
            return Finding("FAILED", f"{type(error).__name__}: {told}", {"traceback": traceback.format_exc()})


START = "devices"
"""The check that starts jax: where it fails, the others of its process have nothing to look at."""

_ALONE = "see that nothing else uses the device, and run it again; the same twice: take another"

CHECKS = (
    Check("versions", "what is installed", "machine.versions", seconds=10, remedy="install what the line names"),
    Check("lock", "libtpu's lock file", "machine.lock", seconds=10, remedy="end the process that holds it"),
    Check(
        "busy",
        "who has the accelerators open",
        "machine.busy",
        seconds=30,
        remedy="wait for those processes, end them if they are yours, or take another with taetpu --device N",
    ),
    Check(
        START,
        "what jax finds",
        "devices.devices",
        seconds=180,
        remedy="what versions, lock and busy say comes first; a slice of several machines needs this on all at once",
    ),
    Check(
        "matmul",
        "products against numpy",
        "numerics.matmul",
        seconds=120,
        remedy="run it again; the same twice is a broken chip or driver: take another",
    ),
    Check("flops", "rate of products", "rates.flops", seconds=180, remedy=_ALONE),
    Check("memory", "bandwidth of memory", "rates.memory", seconds=120, remedy=_ALONE),
    Check(
        "collectives",
        "sums and gathers over devices",
        "devices.collectives",
        seconds=180,
        remedy="use one device (taetpu --device 0), or take another machine",
    ),
    Check(
        "transfer",
        "host to device and back",
        "rates.transfer",
        seconds=120,
        remedy="run it again; numbers that change on the way are a fault of the machine: take another",
    ),
    Check(
        "training",
        "50 steps against stored losses",
        "training.training",
        seconds=240,
        remedy="where matmul is ok, the versions of jax and taetpu are the first suspects: install taetpu's own",
    ),
    Check(
        "pytorch",
        "torch_xla or torch_tpu",
        "pytorch.pytorch",
        seconds=240,
        remedy="install the torch that the backend was made for; jax is not concerned",
    ),
)


def chosen(names: list[str]) -> list[Check]:
    """These checks, in their order; all where none is named. `devices` is made before any other that needs it.

    Raises:
        UserError: there is no such check.
    """
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise UserError(f"there is no check {name!r}", remedy=suggest(name, known))
    if not names:
        return list(CHECKS)
    asked = {known[name] for name in names}
    first = any(check.group == "jax" for check in asked)
    return [check for check in CHECKS if check in asked or (first and check.name == START)]
