"""Weights & Biases (W&B): one W&B run for each run of a study, grouped by study.

W&B's files are in `<study>/trackers/wandb`.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.trackers.base import Row, Sink, TrackedRun, Tracker, final_metrics

PATIENCE = 60.0
"""The maximum number of seconds that training waits for the W&B server at the start and the end of a run."""


@register("tracker", "wandb")
class WandB(Tracker):
    """Weights & Biases. Upload offline runs with `wandb sync STUDYFOLDER/trackers/wandb/wandb/offline-run-*`.

    By default, the mode is taken from W&B's settings (`WANDB_MODE`, `wandb offline`).
    """

    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")] = "taetpu"
    """Project to which runs are logged."""
    entity: str | None = None
    """User or team that owns the project; `none` for the account's default."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """W&B's mode; `none` for the mode in W&B's settings."""
    tags: tuple[str, ...] = ()
    """Tags of every run."""

    max_open: ClassVar[int] = 32  # opening a run takes 0.1 s, or 1 s online

    def open(self, run: TrackedRun) -> Sink:
        """Open the run. An offline run is rewritten, and an online run continues after its last step."""
        # W&B uploads crash reports in every mode, including offline, unless this is set before the import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if (self.mode or wandb.setup().settings.mode) == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("no API key was found", remedy="Run `wandb login`, or set `mode: offline`.")
        run.folder.mkdir(parents=True, exist_ok=True)  # otherwise, wandb uses the system's temporary folder
        for left in sorted(Path(run.folder, "wandb").glob(f"offline-run-*-{run.id}")):
            shutil.rmtree(left)
        settings = wandb.Settings(
            silent=True,
            console="off",  # keeps wandb from capturing the output
            x_disable_stats=True,
            disable_git=True,
            disable_code=True,
            init_timeout=PATIENCE,
            finish_timeout=PATIENCE,
            finish_timeout_raises=True,
        )
        opened = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            tags=self.tags,
            id=run.id,
            name=run.name,
            group=run.study,
            config=dict(run.settings),
            dir=str(run.folder),
            reinit="create_new",  # the runs of a pack are open at the same time
            resume=None if self.mode == "offline" else "allow",
            settings=settings,
        )
        return Run(opened)


class Run(Sink):
    """Logs one run to Weights & Biases."""

    def __init__(self, run: Any):
        self.run, self.first_step = run, run.starting_step

    def log(self, rows: Sequence[Row]) -> None:
        """See `Sink.log`."""
        for row in rows:
            if row.step >= self.first_step:  # the server already has the earlier rows
                text = {} if row.text is None else {"sample": row.text}
                self.run.log({**row.values, **text}, step=row.step)

    def finish(self, result: Mapping[str, Any]) -> None:
        """See `Sink.finish`."""
        self.run.summary.update({"outcome": result["outcome"], **final_metrics(result)})
        self.run.finish()

    def close(self) -> None:
        """See `Sink.close`."""
        self.run.finish(exit_code=1)
