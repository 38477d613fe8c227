"""The capabilities of the devices of this machine or of a TPU slice."""

import os
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from taetpu.core.chips import Slice
from taetpu.core.errors import UserError
from taetpu.nn.attention_kernels import PATHS

Device: TypeAlias = Any
"""A `jax.Device`. The alias exists because type checkers treat `jax.Device` as a variable."""

AMPERE = 8.0  # the lowest compute capability with flash attention in cuDNN
AUTO_ATTENTION = "Use `attention: auto`, which selects a kernel if the device supports one."


@dataclass(frozen=True)
class Capabilities:
    """The properties of devices that limit the compute options of a study.

    Attributes:
        platform: the platform (see `platform_of`).
        devices: the number of devices on all machines together.
        processes: the number of processes on all machines together. Every process takes part in every pack.
        name: the name of the TPU slice; empty for this machine.
    """

    platform: str
    devices: int = 1
    processes: int = 1
    name: str = ""

    @classmethod
    def of_slice(cls, tpu: Slice) -> "Capabilities":
        """Return the capabilities of a TPU slice."""
        return cls("tpu", tpu.devices, tpu.hosts, tpu.name)

    def check_path(self, attention: str, remedy: str = AUTO_ATTENTION) -> None:
        """Raise `UserError` unless the devices support an attention path."""
        path = PATHS.get(attention, PATHS["plain"])
        if path.platform not in ("", self.platform):
            device = f"a device of {self.name}" if self.name else "this device"
            problem = f"attention={attention} needs {path.needs}, but {device} is a {self.platform}"
            raise UserError(problem, path=("train", "compute", "attention"), remedy=remedy)

    def check_devices(self, data: int, model: int) -> None:
        """Raise `UserError` unless a run can be divided over `data * model` of the devices."""
        share = data * model
        if self.devices < share or (self.processes > 1 and self.devices % share):
            problem = f"data={data} and model={model} divide a run over {share} devices, but "
            problem += f"{self.name or 'this machine'} has {self.devices}"
            fits = ", ".join(str(n) for n in range(1, self.devices + 1) if self.devices % n == 0)
            remedy = f"Use mesh: auto, or data times model = {fits}."
            raise UserError(problem, path=("train", "compute", "mesh"), remedy=remedy)


def local_capabilities() -> Capabilities:
    """Return the capabilities of all devices that JAX sees.

    Raises:
        UserError: if JAX does not start.
    """
    return Capabilities(platform_of(first_device()), jax.device_count(), jax.process_count())


def first_device() -> Device:
    """Return JAX's first device.

    Raises:
        UserError: if JAX does not start, e.g. because `JAX_PLATFORMS` names a missing accelerator.
    """
    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError) as error:  # JAX plug-ins without their device may fail an assertion
        reason = str(error).partition(" (set JAX_PLATFORMS=")[0].strip().splitlines() or ["the device was not found"]
        platforms = os.environ.get("JAX_PLATFORMS", "")
        problem = f"JAX does not start{f' with JAX_PLATFORMS={platforms}' if platforms else ''}: {reason[0]}"
        unset = "Unset JAX_PLATFORMS, or set" if platforms else "Set"
        remedy = f"{unset} JAX_PLATFORMS=cpu to use the CPU. Run `taetpu verify` to check the machine."
        raise UserError(problem, remedy=remedy) from None


def platform_of(device: Device) -> str:
    """Return the platform of a device: `cpu`, `tpu`, `cuda` (NVIDIA, Ampere or later), or `gpu` for any other GPU."""
    if device.platform != "gpu":
        return device.platform
    is_nvidia = "cuda" in device.client.platform_version
    return "cuda" if is_nvidia and float(device.compute_capability) >= AMPERE else "gpu"
