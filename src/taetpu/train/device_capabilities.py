"""Where runs are to be trained: this machine, or a slice that is not here; and what of a study neither can do."""

import os
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from taetpu.core.chips import Slice
from taetpu.core.errors import UserError
from taetpu.nn.kernels import PATHS

Device: TypeAlias = Any
"""A `jax.Device`, which type checkers take for a variable."""

AMPERE = 8.0  # compute capability, from which cuDNN has flash attention
AUTO_TAKES = "attention: auto takes it where it is there"


@dataclass(frozen=True)
class Capabilities:
    """Devices, as far as a study may ask for what they cannot do.

    Attributes:
        platform: as `platform_of` says it.
        devices, processes: of all machines together; each process has to take part in every pack.
        name: a slice's; empty for this machine.
    """

    platform: str
    devices: int = 1
    processes: int = 1
    name: str = ""

    @classmethod
    def of_slice(cls, tpu: Slice) -> "Capabilities":
        return cls("tpu", tpu.devices, tpu.hosts, tpu.name)

    def check_path(self, attention: str, remedy: str = AUTO_TAKES) -> None:
        """Raise `UserError` where there is no such path of attention; the path starts in a run's config."""
        path = PATHS.get(attention, PATHS["plain"])
        if path.platform not in ("", self.platform):
            there = f"a device of {self.name}" if self.name else "the device here"
            problem = f"attention={attention} needs {path.needs}, and {there} is a {self.platform}"
            raise UserError(problem, path=("train", "compute", "attention"), remedy=remedy)

    def check_devices(self, data: int, model: int) -> None:
        """Raise `UserError` where a run cannot be divided over so many devices; the path starts in its config."""
        there, share = self.devices, data * model
        if there < share or (self.processes > 1 and there % share):
            has = f"{self.name} has {there}" if self.name else f"here {'are' if there > 1 else 'is'} {there}"
            problem = f"data={data} and model={model} divide a run over {share} devices, and {has}"
            fits = [n for n in range(1, there + 1) if there % n == 0]
            remedy = f"data times model of {', '.join(map(str, fits))}, or mesh: auto"
            raise UserError(problem, path=("train", "compute", "mesh"), remedy=remedy)


def local_capabilities() -> Capabilities:
    """This machine, or all that train together.

    Raises:
        UserError: jax does not start.
    """
    return Capabilities(platform_of(first_device()), jax.device_count(), jax.process_count())


def first_device() -> Device:
    """The first of jax's devices. It starts jax, if nothing has.

    Raises:
        UserError: jax does not start: there is no such accelerator as `JAX_PLATFORMS` names, or none that works.
    """
    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError) as error:  # a plug-in of jax's that finds no device asserts that it is there
        said = str(error).partition(" (set JAX_PLATFORMS=")[0].strip().splitlines()
        asked = f" with JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}" if os.environ.get("JAX_PLATFORMS") else ""
        problem = f"jax does not start{asked}{': ' + said[0] if said else ': it finds no such device'}"
        unset = "unset JAX_PLATFORMS if it names what is not here, or " if asked else ""
        remedy = f"{unset}JAX_PLATFORMS=cpu for the CPU; `taetpu verify` looks at the machine"
        raise UserError(problem, remedy=remedy) from None


def platform_of(device: Device) -> str:
    """The platform of a device: `cpu`, `tpu`, `cuda` (NVIDIA, Ampere or later), or `gpu` for any other GPU."""
    if device.platform != "gpu":
        return device.platform
    is_nvidia = "cuda" in device.client.platform_version
    return "cuda" if is_nvidia and float(device.compute_capability) >= AMPERE else "gpu"
