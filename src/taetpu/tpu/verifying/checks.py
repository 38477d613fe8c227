"""The checks of `taetpu verify`, in the order in which they run."""

import traceback
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from taetpu.core.errors import check_known

Status = Literal["ok", "slow", "FAILED", "skipped"]
Group = Literal["machine", "jax", "torch"]


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        status: `slow` means that a rate is far below the published peak, or below the rate of another device.
        figure: text with the measured values or the problem.
        values: the measured values as plain data, in base units.
        remedy: instruction that replaces the check's default remedy; None for the default.
    """

    status: Status
    figure: str
    values: dict[str, Any] = field(default_factory=dict)
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """A named check and the function that runs it.

    Attributes:
        name: one word, which is also the title of the check's section in docs/verify.md.
        about: short description of what is checked.
        function: `module.function` in this package, imported when the check runs; returns a `Finding` or raises.
        seconds: time limit. The check fails if it gives no result within this time.
        remedy: the first instruction to follow if the check fails.
    """

    name: str
    about: str
    function: str
    seconds: float
    remedy: str

    @property
    def group(self) -> Group:
        """Process in which the check runs: this one, a child with jax, or a child of the Python that has PyTorch.

        Checks of devices run in a child process because a faulty driver may kill the process.
        """
        module = self.function.partition(".")[0]
        return "machine" if module == "machine" else "torch" if module == "torch_script" else "jax"

    def run(self) -> Finding:
        """Run the check and return the result. An exception counts as a failure."""
        module, _, name = self.function.partition(".")
        try:
            return getattr(import_module(f"taetpu.tpu.verifying.{module}"), name)()
        except Exception as error:
            message = (str(error).strip() or "no message").splitlines()[0]
            return Finding("FAILED", f"{type(error).__name__}: {message}", {"traceback": traceback.format_exc()})


DEVICES, TORCH = "devices", "torch"
"""Names of the checks that start jax and PyTorch. If one fails, the other checks in its process are skipped."""
_SLOW = "Make sure that nothing else uses the device, and repeat the check. If it is slow twice, use another device."

CHECKS = (
    Check("versions", "installed versions", "machine.versions", 10, "Install the package that the message names."),
    Check(
        "busy", "processes on the accelerators", "machine.busy", 30,
        "Wait for the listed processes, end those that are yours, or choose another device with `taetpu --device N`.",
    ),
    Check(
        DEVICES, "devices that jax finds", "devices.devices", 180,
        "First fix the problems that the checks `versions` and `busy` report. "
        "On a slice of several hosts, run the check on all hosts at once.",
    ),
    Check(
        "matmul", "matmul against numpy", "numerics.matmul", 120,
        "Repeat the check. If it fails twice, the chip or its driver is broken, so use another machine.",
    ),
    Check("flops", "matmul throughput", "rates.flops", 180, _SLOW),
    Check("memory", "memory bandwidth", "rates.memory", 120, _SLOW),
    Check(
        "collectives", "psum and all-gather", "devices.collectives", 180,
        "Use one device (`taetpu --device 0`) or another machine.",
    ),
    Check(
        "training", "50 steps against stored losses", "training.training", 240,
        "If matmul is ok, install the versions of jax and taetpu that are listed in requirements.lock.",
    ),
)  # fmt: skip

TORCH_CHECKS = (
    Check(
        TORCH, "PyTorch's TPU device", "torch_script.check_device", 180,
        "Run `taetpu verify busy`: one process uses a TPU at a time. If no process does, reinstall torch_tpu. For "
        "torch_xla, install the extra torch_xla[tpu], which has libtpu, and set PJRT_DEVICE=TPU.",
    ),
    Check(
        "torch-matmul", "matmul against numpy", "torch_script.check_matmul", 180,
        "Run `taetpu verify matmul` with jax. If it fails too, the chip or its driver is broken, so use another "
        "machine.",
    ),
    Check(
        "torch-training", "20 steps against numpy", "torch_script.check_training", 300,
        "If torch-matmul is ok, install versions of torch and torch_tpu (or torch_xla) that match.",
    ),
)  # fmt: skip
"""The checks of `taetpu verify --torch`. `torch_script` runs without this package, so they do not return a Finding."""


def select_checks(names: list[str], available: tuple[Check, ...] = CHECKS) -> list[Check]:
    """Return the named checks in the order of `available`, or all of them if `names` is empty.

    The check that starts jax or PyTorch is added if a named check needs it.

    Raises:
        UserError: if no available check has a given name.
    """
    by_name = {check.name: check for check in available}
    for name in names:
        check_known(name, by_name, f"there is no check {name!r}")
    if not names:
        return list(available)
    selected = {by_name[name] for name in names}
    if any(check.group == "jax" for check in selected):
        selected.add(by_name[DEVICES])
    if any(check.group == "torch" for check in selected):
        selected.add(by_name[TORCH])
    return [check for check in available if check in selected]
