"""Checks of PyTorch on a TPU against numpy: `PYTHON torch_script.py CHECK ...`.

The checks use TorchTPU (torch_tpu) or, if only that is installed, its predecessor PyTorch/XLA (torch_xla). They are run
by the Python that has one of them, which may have neither taetpu nor jax, and print the lines of JSON that
`taetpu.tpu.verifying.worker` prints.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch  # imported by the checks: it may print

SIZE = 512
BOUNDS = {"float32": 2e-2, "bfloat16": 5e-3}
"""Maximum relative error of a product in the Frobenius norm. A TPU rounds float32 inputs to bfloat16 (error: 3e-3). The
product of bfloat16 matrices is compared with that of the same rounded values; its result is rounded once more (1e-3).
"""
STEPS, RATE = 20, 0.1
TOLERANCE = {"CPU": 1e-4}
"""Maximum difference between a loss and that of numpy, as a share of the first loss, by kind of device."""
TOLERANCE_BFLOAT16 = 2e-2
"""The same for devices whose products may round float32 inputs."""
DEVICE_FILES = ("accel[0-9]*", "vfio/[0-9]*")

Sync = Callable[[], Any]
Result = dict[str, Any]


class Backend(NamedTuple):
    """What runs PyTorch on a TPU: its package, its kind of device (`TPU` or `CPU`), and their number.

    `sync` waits until the device has computed what was asked so far.
    """

    package: str
    kind: str
    devices: int
    device: "torch.device"
    sync: Sync


def open_backend() -> Backend:
    """Open the first device of TorchTPU or, if that is not installed, of PyTorch/XLA.

    Raises:
        RuntimeError: if TorchTPU has no device.
    """
    import torch  # loads torch_tpu

    if find_spec("torch_tpu"):
        device = torch.accelerator.current_accelerator()
        if device is None or device.type != "tpu":
            raise RuntimeError(f"TorchTPU has no device: PyTorch's accelerator is {device}")
        return Backend("torch_tpu", "TPU", torch.accelerator.device_count(), device, torch.accelerator.synchronize)
    xla = import_module("torch_xla")
    kind = str(import_module("torch_xla.runtime").device_type())
    return Backend("torch_xla", kind, xla.device_count(), xla.device(), xla.sync)


def check_device(backend: Backend, dev: Path = Path("/dev")) -> Result:
    """Return the device; fail if it is the CPU of a machine with a TPU."""
    versions = {name: version(name) for name in ("torch", backend.package)}
    values = {**versions, "kind": backend.kind, "devices": backend.devices}
    if backend.kind == "CPU" and any(file for pattern in DEVICE_FILES for file in dev.glob(pattern)):
        return _result("FAILED", f"{backend.package} runs on the CPU, but this machine has a TPU", values)
    shown = ", ".join(f"{name} {number}" for name, number in versions.items())
    return _result("ok", f"{shown}: {backend.devices} x {backend.kind}", values)


def check_matmul(
    device: "torch.device", sync: Sync, reference: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul
) -> Result:
    """Compare the product of two random matrices with `reference`, in float32 and bfloat16."""
    import torch

    random = np.random.default_rng(0)
    matrices = [torch.from_numpy(random.standard_normal((SIZE, SIZE)).astype(np.float32)) for _ in range(2)]
    errors = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a, b = (matrix.to(dtype) for matrix in matrices)
        product = a.to(device) @ b.to(device)
        sync()
        expected = reference(a.double().numpy(), b.double().numpy())
        errors[name] = float(np.linalg.norm(product.cpu().double().numpy() - expected) / np.linalg.norm(expected))
    values = {"size": SIZE, "errors": errors, "bounds": BOUNDS}
    for name, error in errors.items():
        if not error <= BOUNDS[name]:
            figure = f"relative error {error:.1e} in {name}, above the limit of {BOUNDS[name]:.0e}"
            return _result("FAILED", figure, values)
    return _result("ok", f"relative error {errors['float32']:.0e} in float32", values)


def check_training(device: "torch.device", sync: Sync, kind: str, rate: float = RATE) -> Result:
    """Train a network with two layers, and compare the loss of each step with that of numpy in float64."""
    import torch

    random = np.random.default_rng(0)
    x, w1, w2 = (random.standard_normal(shape) / 4 for shape in ((64, 16), (16, 32), (32, 1)))
    y = np.tanh(x[:, :1] * 4)
    expected = train_numpy(x, y, w1, w2)
    inputs, targets = (torch.tensor(array, dtype=torch.float32).to(device) for array in (x, y))
    parameters = [torch.tensor(w, dtype=torch.float32).to(device).requires_grad_() for w in (w1, w2)]
    optimizer, losses = torch.optim.SGD(parameters, lr=rate), []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(torch.tanh(inputs @ parameters[0]) @ parameters[1], targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sync()
        losses.append(loss.item())
    differences = np.nan_to_num(np.abs(np.array(losses) - expected) / expected[0], nan=np.inf)
    worst, tolerance = int(np.argmax(differences)), TOLERANCE.get(kind, TOLERANCE_BFLOAT16)
    values = {"losses": losses, "largest_difference": float(differences[worst]), "tolerance": tolerance}
    if differences[worst] > tolerance:
        figure = f"step {worst + 1} has loss {losses[worst]:.4f}, expected {expected[worst]:.4f}"
        return _result("FAILED", figure, values)
    return _result("ok", f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {STEPS} steps", values)


def train_numpy(x: np.ndarray, y: np.ndarray, w1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    """Return the loss of each step, `(STEPS,)`, with gradients written out.

    Shapes: x `(rows, inputs)`, y `(rows, 1)`, w1 `(inputs, hidden)`, w2 `(hidden, 1)`.
    """
    losses = []
    for _ in range(STEPS):
        hidden = np.tanh(x @ w1)
        residual = hidden @ w2 - y
        losses.append(np.mean(residual**2))
        grad = 2 * residual / len(x)
        grad_hidden = grad @ w2.T * (1 - hidden**2)
        w2 = w2 - RATE * hidden.T @ grad
        w1 = w1 - RATE * x.T @ grad_hidden
    return np.array(losses)


def _result(status: str, figure: str, values: dict[str, Any]) -> Result:
    return {"status": status, "figure": figure, "values": values}


def run_check(name: str) -> Result:
    """Run a check on the first device. An exception counts as a failure."""
    try:
        backend = open_backend()
        if name == "torch":
            return check_device(backend)
        if name == "torch-matmul":
            return check_matmul(backend.device, backend.sync)
        return check_training(backend.device, backend.sync, backend.kind)
    except Exception as error:
        message = (str(error).strip() or "no message").splitlines()[0]
        return _result("FAILED", f"{type(error).__name__}: {message}", {})


def main() -> None:
    """Run the checks named in the arguments."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print; only answers go to stdout
    for name in sys.argv[1:]:
        print(json.dumps({"check": name}), file=answers, flush=True)
        print(json.dumps({"check": name, "finding": run_check(name)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
