"""PyTorch on the accelerator, through torch_xla or torch_tpu: a product and one train step against the CPU's.

Neither was at hand on a TPU when this was written; what is compared is tried in the tests with PyTorch's own device.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from taetpu.tpu.verifying.checks import Finding

BOUND = 2e-2
"""The largest relative error: a TPU multiplies in bfloat16 unless told otherwise."""


def torch_xla_device() -> tuple[Any, int, Callable[[], None]]:
    """`(device, how many, wait)` of torch_xla."""
    torch_xla, runtime = import_module("torch_xla"), import_module("torch_xla.runtime")
    return torch_xla.device(), runtime.global_runtime_device_count(), torch_xla.sync


def torch_tpu_device() -> tuple[Any, int, Callable[[], None]]:
    """`(device, how many, wait)` of torch_tpu."""
    import torch

    api = import_module("torch_tpu.api")
    return api.tpu_device(), torch.accelerator.device_count(), torch.accelerator.synchronize


BACKENDS = {"torch_tpu": torch_tpu_device, "torch_xla": torch_xla_device}


def pytorch() -> Finding:
    """Every backend of PyTorch that is installed."""
    there = [name for name in BACKENDS if find_spec(name)]
    if not there:
        return Finding("skipped", "torch_xla and torch_tpu are not installed")
    found = {name: compared(*BACKENDS[name]()) for name in there}
    values = {name: one.values for name, one in found.items()}
    told = "; ".join(f"{name}: {one.figure}" for name, one in found.items())
    return Finding("FAILED" if any(one.status == "FAILED" for one in found.values()) else "ok", told, values)


def results(device: Any) -> dict[str, Any]:
    """A product, and weights after one step of gradient descent, as a device computes them."""
    import torch

    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(256, 128, generator=draw), torch.randn(128, 64, generator=draw)
    product = x.to(device) @ w.to(device)
    weight = w.to(device).requires_grad_()
    torch.tanh(x.to(device) @ weight).square().mean().backward()
    gradient = weight.grad
    assert gradient is not None
    return {"product": product, "train step": (weight - gradient).detach()}


def compared(device: Any, count: int, wait: Callable[[], None], right: dict[str, Any] | None = None) -> Finding:
    """What `device` computes against `right`, the CPU's unless given; `wait` ends when it has computed."""
    found, right = results(device), right or results("cpu")
    wait()
    off = {name: float((found[name].cpu() - right[name]).norm() / right[name].norm()) for name in right}
    values = {"device": str(device), "devices": count, "errors": off, "bound": BOUND}
    wrong = [name for name, error in off.items() if not error <= BOUND]
    if wrong:
        return Finding("FAILED", f"the {wrong[0]} on {device} is off by {off[wrong[0]]:.0e}", values)
    told = ", ".join(f"{name} off by {error:.0e}" for name, error in off.items())
    return Finding("ok", f"{count} x {device}: {told}", values)
