"""Compare a matmul and a train step in PyTorch, on a TPU through torch_xla or torch_tpu, with the CPU's results.

This check has not been run on a TPU, because neither backend was available. Its tests compare PyTorch's CPU device with
itself.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from taetpu.tpu.verifying.checks import Finding

BOUND = 2e-2
"""Maximum relative error. By default, a TPU multiplies in bfloat16."""


def _torch_xla() -> tuple[Any, int, Callable[[], None]]:
    """Return `(device, count, synchronize)` for torch_xla."""
    torch_xla, runtime = import_module("torch_xla"), import_module("torch_xla.runtime")
    return torch_xla.device(), runtime.global_runtime_device_count(), torch_xla.sync


def _torch_tpu() -> tuple[Any, int, Callable[[], None]]:
    """Return `(device, count, synchronize)` for torch_tpu."""
    import torch

    api = import_module("torch_tpu.api")
    return api.tpu_device(), torch.accelerator.device_count(), torch.accelerator.synchronize


BACKENDS = {"torch_tpu": _torch_tpu, "torch_xla": _torch_xla}


def pytorch() -> Finding:
    """Check every installed PyTorch backend for TPUs."""
    found = {name: compare_with_cpu(*backend()) for name, backend in BACKENDS.items() if find_spec(name)}
    if not found:
        return Finding("skipped", "torch_xla and torch_tpu are not installed")
    values = {name: one.values for name, one in found.items()}
    figure = "; ".join(f"{name}: {one.figure}" for name, one in found.items())
    return Finding("FAILED" if any(one.status == "FAILED" for one in found.values()) else "ok", figure, values)


def compute(device: Any) -> dict[str, Any]:
    """Compute a matmul and the weights after one step of gradient descent on a device, and return both."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(256, 128, generator=generator), torch.randn(128, 64, generator=generator)
    product = x.to(device) @ w.to(device)
    weight = w.to(device).requires_grad_()
    torch.tanh(x.to(device) @ weight).square().mean().backward()
    gradient = weight.grad
    assert gradient is not None
    return {"matmul": product, "train step": (weight - gradient).detach()}


def compare_with_cpu(
    device: Any, count: int, synchronize: Callable[[], None], expected: dict[str, Any] | None = None
) -> Finding:
    """Compare the results of `compute` on a device with the expected results (default: the results on the CPU)."""
    results, expected = compute(device), expected or compute("cpu")
    synchronize()
    errors = {name: float((results[name].cpu() - right).norm() / right.norm()) for name, right in expected.items()}
    values = {"device": str(device), "devices": count, "errors": errors, "bound": BOUND}
    for name, error in errors.items():
        if not error <= BOUND:
            figure = f"{name} on {device} has a relative error of {error:.0e}, above the limit of {BOUND:.0e}"
            return Finding("FAILED", figure, values)
    figures = ", ".join(f"{name} error {error:.0e}" for name, error in errors.items())
    return Finding("ok", f"{count} x {device}: {figures}", values)
