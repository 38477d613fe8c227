"""What every cloud command starts from: the settings that hold here, the project's clients, its machines."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.clients import Clients
    from taetpu.cloud.project import Cloud
    from taetpu.cloud.settings import Settings


@dataclass(frozen=True)
class Here:
    """The settings of this folder, and what they lead to."""

    settings: "Settings"

    @cached_property
    def clients(self) -> "Clients":
        from taetpu.cloud.clients import Clients

        return Clients(self.settings.project)

    @cached_property
    def cloud(self) -> "Cloud":
        from dataclasses import replace

        from taetpu.cloud.backends.gce import Gce
        from taetpu.cloud.backends.tpu_api import TpuApi
        from taetpu.cloud.project import Cloud, Waits
        from taetpu.cloud.spec import label
        from taetpu.cloud.state import Records

        backends = (Gce(self.clients), TpuApi(self.clients))
        waits = replace(Waits.here(), now=self.clients.now)
        return Cloud(backends, Records(self.settings.project), label(self.settings.owner), tell, waits)

    def stack(self, name: str | None) -> str:
        """The name of the TPU that is meant: the one given, else the settings', else one after its owner."""
        from taetpu.cloud.spec import check_stack, label, stack_of

        return check_stack(name or self.settings.stack or stack_of(label(self.settings.owner)))

    def noted(self, plan: str) -> str:
        """A plan to make or remove something, with a warning where others may do as they like with it."""
        if not self.settings.shared:
            return plan
        return f"{plan}\nwarning: owner {self.settings.shared}; set `owner` in taetpu.toml, or TAETPU_OWNER"


def lasting(machine: "Machine", now: float) -> str:
    """When a machine is deleted at the latest: `in 3:10 h`, `4:00 h after it starts`; "" where it does not say, or is
    over.

    Args:
        now: seconds since 1970, by the cloud's clock.
    """
    from taetpu.cloud.backends.base import OVER, State

    left = machine.left(now)
    if left is None or machine.state in OVER:
        return ""
    waits = machine.state is State.WAITING and not machine.started
    return f"{hours(left)} after it starts" if waits else f"in {hours(left)}"


def hours(seconds: float) -> str:
    """A time in hours and minutes: `3:10 h`."""
    minutes = max(0, round(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d} h"


def here() -> Here:
    """The settings that hold in this folder.

    Raises:
        UserError: they cannot be read.
    """
    from taetpu.cloud.settings import read

    return Here(read())


def tell(line: str) -> None:
    """A step of what is going on, to the standard error output."""
    typer.echo(line, err=True)
