"""The fastest way to pack the runs of a group, found by trying: width x devices x unrolled layers.

On a CPU each layout is tried in a process of its own (`train.trial`), one at work at a time, so that neither threads
nor memory of one disturb another. An accelerator belongs to this process, and can be asked for too much without harm:
there layouts are tried here. What was measured is kept in the cache folder, by machine and shape.
"""

import hashlib
import math
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.flags import flags, without_dumps
from taetpu.core.identity import BESIDE
from taetpu.core.runtime import cache_folder, cores
from taetpu.core.static_dynamic import split
from taetpu.nn.stack import UNROLL_UP_TO
from taetpu.spec.identity import canonical, plugin_sources
from taetpu.store.backend import open_store
from taetpu.store.documents import from_json, to_json
from taetpu.train.bench import KEPT, Bench, Child, Here, NotMeasured, Tried
from taetpu.train.callbacks import Watcher
from taetpu.train.count import flops_per_token
from taetpu.train.memory import memory_bytes
from taetpu.train.plan import AUTO, WIDEST, Layout, Packing, Work, device_counts, even_width, shard_counts

TIMED, TRAINED = "packs", "trained"  # folders of the cache: what calibrations timed, and what training took

UNROLLS = (2, 4)  # layers a pass of a deep stack's loop

# A calibration takes about half a minute, a twentieth of this. A wrong number of devices costs several times as much.
PAYS = 600.0  # seconds of work
# What a CPU core and an accelerator compute in a second at best; real rates are lower, most of all for small models, so
# that work takes longer than this makes believe.
FLOPS_OF_CORE, FLOPS_OF_ACCELERATOR = 1e11, 2e13


@dataclass(frozen=True)
class Shape:
    """What the time of a step depends on, besides the layout.

    Attributes:
        folder: where the task's paths start.
        plugins: the plug-ins of the study.
    """

    work: Work
    folder: Path
    plugins: tuple[Path, ...]

    def request(self, layout: Layout) -> dict[str, Any]:
        """All that another process needs to try a layout."""
        return {
            "config": to_data(self.work.config),
            "live": sorted(self.work.group.live),
            "precision": self.work.precision,
            "execution": asdict(self.work.execution),
            "data": self.work.source.fingerprint,
            "folder": str(self.folder),
            "plugins": [str(file) for file in self.plugins],
            "devices": str(jax.devices()),
            "layout": asdict(layout),
        }

    def start(self, layout: Layout) -> Tried:
        """A layout, compiled and ready to be timed."""
        work = self.work
        if jax.default_backend() == "cpu":
            return Child(self.request(layout), environ=without_dumps())
        how = {"live": work.group.live, "precision": work.precision, "execution": work.execution}
        return Here(work.config, work.source, layout, **how)

    def about(self) -> dict[str, Any]:
        """The machine and the program; measurements are good for whoever has the same."""
        source = self.work.source
        config = to_data(split(self.work.config, self.work.group.live)[0])
        train = {k: v for k, v in config["train"].items() if k not in (*BESIDE, "steps", "epochs", "loss_bound")}
        task = {k: v for k, v in config["task"].items() if k not in ("source", "val", "test")}
        return {
            "machine": machine(),
            "program": {
                "task": task,
                "model": config["model"],
                "train": train,
                "precision": self.work.precision,
                **self.work.execution.told,
            },
            "plugins": plugin_sources(self.work.config),
            "vocab": source.vocab_size,
            "seq_len": source.seq_len,
        }

    @property
    def deep(self) -> bool:
        """Has the model a stack of layers that is not unrolled whole? With remat every stack stays a loop."""
        most = UNROLL_UP_TO if self.work.execution.remat == "none" else 1
        layers = split(self.work.config, self.work.group.live)[0].model.layers
        return any(len(list(alike)) > most for _, alike in groupby(layers))

    def seconds_of_work(self) -> float:
        """A lower bound of how long training the group takes."""
        config, source = self.work.config, self.work.source
        tokens = config.train.total_steps(source.num_windows) * config.train.batch_size * source.seq_len
        flops = self.work.size * tokens * flops_per_token(config.model, source.vocab_size, source.seq_len)
        on_cpu = jax.default_backend() == "cpu"
        return flops / (cores() * FLOPS_OF_CORE if on_cpu else jax.local_device_count() * FLOPS_OF_ACCELERATOR)

    def pays(self) -> bool:
        """Is there so much to train that measuring first is likely to save time?"""
        return self.seconds_of_work() > PAYS


# --- which layouts are tried -----------------------------------------------------------------------------------------


def search(shape: Shape, packing: Packing, seconds: Callable[[Layout], float]) -> dict[Layout, float]:
    """What is to be tried, one after another, and the seconds of a step of each.

    Args:
        seconds: times a layout; infinite where it needs more memory than there is.
    """
    found = ladder(shape, packing, seconds)
    best = soonest(shape.work.size, found)
    if shape.deep and best is not None:
        found |= {layout: seconds(layout) for layout in (replace(best, unroll=layers) for layers in UNROLLS)}
    return found


def ladder(shape: Shape, packing: Packing, seconds: Callable[[Layout], float]) -> dict[Layout, float]:
    """The part of `search` that goes through widths and devices.

    Narrow packs come first, and wider ones only while they are not much slower. On a CPU the runs of a core take turns,
    so that width does not matter: there only the number of cores is tried, which a small run uses badly together.
    """
    size, found = shape.work.size, dict[Layout, float]()
    for shards in shard_counts(shape.work.config)[1:] if min(size, packing.widest or size) == 1 else ():
        found[Layout(1, shards)] = seconds(Layout(1, shards))
    for devices in reversed([count for count in device_counts(size) if count <= size]):
        best = math.inf
        for width in widths(size, min(packing.widest or 2 * size, shape.work.widest(devices)), devices):
            found[Layout(width, devices)] = taken = seconds(Layout(width, devices))
            best = min(best, taken / width)
            if math.isinf(taken) or best < KEPT * taken / width:
                break
    return found


def soonest(runs: int, seconds: Mapping[Layout, float]) -> Layout | None:
    """The layout in which so many runs take a step soonest, pack after pack; None where none can be trained."""
    best = min(seconds, key=lambda layout: -(-runs // layout.width) * seconds[layout], default=None)
    return best if best is not None and math.isfinite(seconds[best]) else None


def fitting_width(runs: int, least: int, most: int, devices: int) -> int:
    """The width between two that leaves the fewest places empty in the last pack of `runs`; the widest of such."""
    widths = range(-(-least // devices) * devices, most + 1, devices)
    return min(widths, key=lambda width: (-(-runs // width) * width, -width))


def widths(runs: int, most: int, devices: int) -> list[int]:
    """Widths worth trying over so many devices, narrow ones first."""
    if jax.default_backend() == "cpu":  # runs take turns, and the fewest packs have the least to do besides
        return [even_width(runs, min(most, WIDEST * devices), devices)] if most >= devices else []
    return growing_widths(runs, most, devices)


def growing_widths(runs: int, most: int, devices: int) -> list[int]:
    """About 1, 2, 4, 8 ... runs a device, up to all in one pack, leaving few places empty."""
    found, goal = [], devices
    while True:
        top = min(goal, most, -(-runs // devices) * devices)
        if top // devices * devices > goal // 2:
            found.append(fitting_width(runs, goal // 2 + 1, top, devices))
        if goal >= min(runs, most):
            return found
        goal *= 2


# --- what is remembered ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """What `train.plan.plan_packs` asks for the fastest layout.

    Args:
        folder, plugins: see `Shape`.
        watcher: is told while layouts are timed; without one nothing is, and only what is remembered counts.
    """

    folder: Path
    plugins: tuple[Path, ...] = ()
    watcher: Watcher | None = None

    def __call__(self, work: Work, packing: Packing) -> Layout | None:
        shape = Shape(work, self.folder, self.plugins)
        try:
            return fastest(shape, packing, remembered(shape))
        except KeyError:
            return self.now(shape, packing, self.watcher) if self.watcher and self.wanted(work, packing) else None

    def now(self, shape: Shape, packing: Packing, watcher: Watcher) -> Layout | None:
        """The fastest layout, measured now and remembered."""
        runs = shape.work.size
        try:
            known = remembered(shape) | measured(shape, packing, watcher)
        except NotMeasured as error:
            watcher.calibrated(runs, None, str(error))
            return None
        remember(shape, known)
        layout = fastest(shape, packing, known)
        watcher.calibrated(runs, layout, "" if layout else "not even one run fits into memory")
        return layout

    def timed(self, work: Work, watcher: Watcher) -> float | None:
        """The seconds that a step of one run takes in the fastest layout; measured now unless it is remembered, also
        where there is no choice of layouts. None where it cannot be measured.
        """
        shape = Shape(work, self.folder, self.plugins)
        try:
            layout = fastest(shape, AUTO, remembered(shape))
        except KeyError:
            layout = self.now(shape, AUTO, watcher)
        seconds = None if layout is None else self.seconds(work, layout)
        return None if layout is None or seconds is None else seconds / layout.width

    def seconds(self, work: Work, layout: Layout) -> float | None:
        """The time of a step in a layout, where this machine remembers it from a calibration or else from training."""
        shape = Shape(work, self.folder, self.plugins)
        found = remembered(shape).get(layout) or remembered(shape, TRAINED).get(layout) or math.inf
        return found if math.isfinite(found) else None

    def trained(self, work: Work, layout: Layout, seconds: float) -> None:
        """Keep the time of a step of a pack that was trained. It chooses no layout: those are timed side by side."""
        shape = Shape(work, self.folder, self.plugins)
        remember(shape, remembered(shape, TRAINED) | {layout: seconds}, TRAINED)

    def wanted(self, work: Work, packing: Packing) -> bool:
        """Is this group to be measured, if nothing is remembered of it?"""
        shape = Shape(work, self.folder, self.plugins)
        only = work.size == 1 and not shape.deep and shard_counts(work.config) == [1]
        if packing.measure == "never" or only:
            return False
        return packing.measure == "always" or shape.pays()


def fastest(shape: Shape, packing: Packing, known: Mapping[Layout, float]) -> Layout | None:
    """The best of what was measured; None where no layout can be trained.

    Raises:
        KeyError: something that would be tried was not.
    """
    tried = ladder(shape, packing, known.__getitem__)
    return soonest(shape.work.size, {one: known[one] for one in known if replace(one, unroll=1) in tried})


def measured(shape: Shape, packing: Packing, watcher: Watcher) -> dict[Layout, float]:
    """The seconds of a step by layout, timed now. Raises `NotMeasured`."""
    with Bench(shape.work.size, shape.start) as bench:

        def look(layout: Layout) -> float:
            watcher.calibrating(shape.work.size, layout, len(bench.seconds) + 1)
            return bench.first_look(layout)

        search(shape, packing, look)
        bench.finish()
        return bench.seconds


def remembered(shape: Shape, kind: str = TIMED) -> dict[Layout, float]:
    """The seconds of a step by layout, as measured on this machine before; infinite where memory did not suffice."""
    store, key = open_store(cache_folder()), _key(shape, kind)
    try:
        data = from_json(store.read(key), store.where(key)) if store.exists(key) else {"layouts": []}
        return {
            Layout(*(found[name] for name in ("width", "devices", "unroll"))): found["seconds"] or math.inf
            for found in data["layouts"]
        }
    except (UserError, KeyError, TypeError):  # damaged, or of another version: it will be written anew
        return {}


def remember(shape: Shape, seconds: Mapping[Layout, float], kind: str = TIMED) -> None:
    """Keep what was measured for the next study of this shape."""
    layouts = [
        {**asdict(layout), "seconds": taken if math.isfinite(taken) else None} for layout, taken in seconds.items()
    ]
    with suppress(UserError):  # a cache that cannot be written costs time, not the study
        open_store(cache_folder()).write(
            _key(shape, kind), to_json({**shape.about(), "layouts": layouts}), replace=True
        )


def _key(shape: Shape, kind: str) -> str:
    return f"{kind}/{hashed(shape.about())}.json"


def hashed(data: Any) -> str:
    """A name for plain data."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]


def machine() -> dict[str, Any]:
    """What of this machine the speed of a program depends on."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "jaxlib": version("jaxlib"),
        "memory": round(memory_bytes() / 2**30),
        **flags(),
    }


def cpu_model() -> str:
    """The processor's name."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
