"""TensorBoard event files in `<study>/trackers/tensorboard/<arm>/<seed>-<id>/`.

The files are written directly instead of with `SummaryWriter`, because a `SummaryWriter` needs an open file and a
thread per run, and reports a full disk only in this thread. tensorboardX builds the events.
"""

import shutil
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taetpu.core.registry import register
from taetpu.trackers.base import Row, Sink, TrackedRun, Tracker, final_metrics

FILE = "events.out.tfevents.taetpu"  # TensorBoard recognizes event files by `tfevents`


@register("tracker", "tensorboard")
class TensorBoard(Tracker):
    """Event files in the study's folder. Show them with `tensorboard --logdir STUDYFOLDER/trackers/tensorboard`."""

    def open(self, run: TrackedRun) -> Sink:
        """Open the run's event file, which replaces the event file of an earlier process."""
        return Events(run.folder / run.arm / f"{run.seed}-{run.id}", run.settings)


class Events(Sink):
    """The event file of a run. The file is open only during a write, so that many runs need few open files."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        import tensorboardX.summary  # first: a missing library is reported before anything is deleted

        self.file, self.settings, self.last = folder / FILE, settings, 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        lines = "\n".join(f"{name}: {value}" for name, value in settings.items())
        start = self._event(file_version="brain.Event:2")
        self._add([start, *self._summaries(0, [tensorboardX.summary.text("settings", _code(lines))])])

    def log(self, rows: Sequence[Row]) -> None:
        """See `Sink.log`."""
        from tensorboardX.summary import scalar, text

        events = []
        for row in rows:
            summaries = [scalar(name, value) for name, value in row.values.items()]
            if row.text is not None:
                summaries.append(text("sample", _code(row.text)))
            events += self._summaries(row.step, summaries)
            self.last = row.step
        self._add(events)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the final metrics and the settings, for TensorBoard's table of hyperparameters."""
        from tensorboardX.summary import hparams, scalar, text

        values = final_metrics(result)
        shown = {name: v if isinstance(v, bool | int | float | str) else str(v) for name, v in self.settings.items()}
        summaries = [text("outcome", result["outcome"]), *hparams(shown, values)]
        summaries += [scalar(name, value) for name, value in values.items()]
        self._add(self._summaries(self.last, summaries))

    def _event(self, **fields: Any) -> Any:
        from tensorboardX.proto import event_pb2

        return event_pb2.Event(wall_time=time.time(), **fields)  # pyright: ignore[reportAttributeAccessIssue]

    def _summaries(self, step: int, summaries: Sequence[Any]) -> list[Any]:
        return [self._event(step=step, summary=summary) for summary in summaries]

    def _add(self, events: Sequence[Any]) -> None:
        from tensorboardX.record_writer import masked_crc32c

        with open(self.file, "ab") as file:
            for event in events:
                data = event.SerializeToString()
                size = struct.pack("<Q", len(data))
                file.write(
                    size + struct.pack("<I", masked_crc32c(size)) + data + struct.pack("<I", masked_crc32c(data))
                )


def _code(text: str) -> str:
    """Return text as a Markdown code block, which TensorBoard shows verbatim."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
