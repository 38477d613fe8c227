"""Weights & Biases: a run of theirs for each run, in the study's group. Its files are in `<study>/trackers/wandb`."""

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
"""Seconds that training waits for a server, at the beginning of a run and at its end."""


@register("tracker", "wandb")
class WandB(Tracker):
    """Weights & Biases. With mode offline nothing is sent: `wandb sync STUDYFOLDER/trackers/wandb/wandb/offline-run-*`.

    Where mode is not given, their own settings decide (`WANDB_MODE`, `wandb offline`).
    """

    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")] = "taetpu"
    """Project to log to."""
    entity: str | None = None
    """User or team; `none`: the account's default."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Whether runs are sent; `none`: as their own settings say."""
    tags: tuple[str, ...] = ()
    """Tags of every run."""

    max_open: ClassVar[int] = 32  # each takes a tenth of a second to begin, or a second online

    def open(self, run: TrackedRun) -> Sink:
        """A run that was begun offline is written anew; one that was begun online goes on after its last step."""
        # Their reports on their own faults go out in any mode, offline too, unless this is set before the import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if (self.mode or wandb.setup().settings.mode) == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("no API key was found", remedy="`wandb login`, or mode: offline")
        run.folder.mkdir(parents=True, exist_ok=True)  # where it cannot write, wandb takes the system's temporary one
        for left in sorted(Path(run.folder, "wandb").glob(f"offline-run-*-{run.id}")):
            shutil.rmtree(left)
        settings = wandb.Settings(
            silent=True,
            console="off",  # what we print is ours
            x_disable_stats=True,
            disable_git=True,
            disable_code=True,
            init_timeout=PATIENCE,
            finish_timeout=PATIENCE,
            finish_timeout_raises=True,
        )
        begun = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            tags=self.tags,
            id=run.id,
            name=run.name,
            group=run.study,
            config=dict(run.settings),
            dir=str(run.folder),
            reinit="create_new",  # the runs of a pack are trained side by side
            resume=None if self.mode == "offline" else "allow",
            settings=settings,
        )
        return Run(begun)


class Run(Sink):
    """A run of theirs."""

    def __init__(self, run: Any):
        self.run, self.known = run, run.starting_step

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.step >= self.known:  # 0, or behind what the server has of the run
                text = {} if row.text is None else {"sample": row.text}
                self.run.log({**row.values, **text}, step=row.step)

    def finish(self, result: Mapping[str, Any]) -> None:
        self.run.summary.update({"outcome": result["outcome"], **final_metrics(result)})
        self.run.finish()

    def close(self) -> None:
        self.run.finish(exit_code=1)
