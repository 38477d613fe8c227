"""What a check is, and what comes of one."""

import traceback
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

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
