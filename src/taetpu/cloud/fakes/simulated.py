"""Chips of a machine of the fakes, and how they are used: **simulated**, so that what shows them can be tried.

The chips are empty files where a machine's devices would be. Their use comes from a stand-in of `tpu-info`, which has
two functions of the real one, `device.get_local_chips` and `metrics.get_chip_usage`: while a job runs it says that each
chip is busy and half full, whatever the job does. As of the real one, nothing is heard of it while no program runs.
"""

from collections.abc import Mapping
from pathlib import Path

from taetpu.core.chips import generations, resolve

FOLDER = "simulated"
"""In a machine's private folder; the environment that jobs run in looks for modules there."""
DEVICE = """\
def get_local_chips():
    return "simulated", {chips}
"""
METRICS = """\
import collections, glob, json, os

Usage = collections.namedtuple("Usage", "device_id memory_usage total_memory duty_cycle_pct")


def runs(job):
    with open(os.path.join(job, "pid")) as file:
        return not os.path.exists(os.path.join(job, "rc")) and os.path.exists("/proc/%d" % json.load(file)["pid"])


def get_chip_usage(kind):
    if not any(runs(os.path.dirname(path)) for path in glob.glob(os.path.expanduser("~/.taetpu/jobs/*/pid"))):
        raise RuntimeError("nothing runs that could tell")
    return [Usage(chip, {hbm} // 2, {hbm}, 90.0 - chip) for chip in range({chips})]
"""


def install(private: Path, metadata: Mapping[str, str]) -> None:
    """Give a machine the chips that its metadata speak of; none if they speak of none."""
    chips, hbm = _chips(metadata)
    if not chips:
        return
    (private / "dev").mkdir()
    for chip in range(chips):
        (private / "dev" / f"accel{chip}").touch()
    package = private / FOLDER / "tpu_info"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "device.py").write_text(DEVICE.format(chips=chips))
    (package / "metrics.py").write_text(METRICS.format(chips=chips, hbm=hbm))


def _chips(metadata: Mapping[str, str]) -> tuple[int, int]:
    """How many there are on this host, and the bytes of memory of each."""
    if kind := metadata.get("accelerator-type"):
        tpu = resolve(kind)
        return tpu.chips_per_host, tpu.generation.hbm_bytes
    for generation in generations():
        for chips, machine in generation.machine_types:
            if machine == metadata.get("machine-type"):
                return chips, generation.hbm_bytes
    return 0, 0
