"""What is yours: the project, the zones, the limits. From `taetpu.toml`, nearest first, and the environment over it."""

import getpass
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from taetpu.core.config import Config
from taetpu.core.errors import UserError
from taetpu.core.loading import load

FILE = "taetpu.toml"
TABLE = "cloud"
PREFIX = "TAETPU_"


class Settings(Config):
    """The table `[cloud]` of `taetpu.toml`. Each field may also be set as `TAETPU_` and its name in capitals.

    There is no field for a key file: credentials are Google's application-default ones.

    Attributes:
        project: the Google Cloud project; else GOOGLE_CLOUD_PROJECT.
        owner: who makes things, a label on all of them; the login name otherwise.
        stack: the name of a TPU where a command says none.
        zones: where to look, in this order; empty: wherever the chip is, the cheapest first.
        backend: "gce" or "tpu-api"; empty: the one that suits the generation.
        bucket: where results go.
        region: of the bucket and of images, where no zone says it.
        repository: of images, in Artifact Registry.
        service_account: the e-mail address that machines act as.
        network, subnetwork: by name.
        external_ip: give machines an address of their own instead of reaching them through IAP.
        max_hours: after which a machine is deleted.
        max_usd: a machine whose worst case costs more is refused; empty: no limit.
        max_usd_per_chip_hour: a rate above it is refused.
        idle_minutes: without a job, progress or login after which a machine deletes itself; 0: never.
        image: the container that jobs run in; empty: a virtual environment on the machine.
    """

    project: str = ""
    owner: str = ""
    stack: str = ""
    zones: tuple[str, ...] = ()
    backend: str = ""
    bucket: str = ""
    region: str = ""
    repository: str = "taetpu"
    service_account: str = ""
    network: str = "default"
    subnetwork: str = ""
    external_ip: bool = False
    max_hours: Annotated[float, Field(gt=0, le=168)] = 4.0
    max_usd: Annotated[float, Field(gt=0)] | None = None
    max_usd_per_chip_hour: Annotated[float, Field(gt=0)] | None = None
    idle_minutes: Annotated[int, Field(ge=0)] = 30
    image: str = ""


def read(folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that hold in a folder: the nearest `taetpu.toml` at or above it, the environment's over its own.

    Raises:
        UserError: the file cannot be read, or a value is none that its field takes.
    """
    environment = os.environ if environment is None else environment
    file = find(folder or Path.cwd())
    values = _table(file) if file else {}
    for name in Settings.model_fields:
        text = environment.get(f"{PREFIX}{name.upper()}", "")
        if text:
            values[name] = _parsed(name, text)
    values.setdefault("project", environment.get("GOOGLE_CLOUD_PROJECT", ""))
    values.setdefault("owner", environment.get("USER", "") or _login())
    try:
        return load(Settings, values, (TABLE,))
    except UserError as error:
        raise error.at(file=file) if file else error from None


def find(folder: Path) -> Path | None:
    """The nearest `taetpu.toml` at or above a folder."""
    here = folder.resolve()
    return next((parent / FILE for parent in (here, *here.parents) if (parent / FILE).is_file()), None)


def _table(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"this is no TOML: {error}", file=file, remedy="`taetpu doctor --init` writes one") from None
    if extra := sorted(set(document) - {TABLE}):
        raise UserError(f"{extra[0]!r} is nothing that taetpu reads", file=file, remedy=f"only [{TABLE}] is read")
    return dict(document.get(TABLE, {}))


def _parsed(name: str, text: str) -> Any:
    """A value of the environment, as TOML would have it; a list is written with commas."""
    kind = str(Settings.model_fields[name].annotation)
    if "tuple" in kind:
        return [part.strip() for part in text.split(",") if part.strip()]
    if "bool" in kind:
        return text.lower() in ("1", "true", "yes")
    if "float" in kind or "int" in kind:
        try:
            return float(text) if "float" in kind else int(text)
        except ValueError:
            problem = f"{PREFIX}{name.upper()}={text!r} is no number"
            raise UserError(problem, remedy="set it to a number, or unset it") from None
    return text


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"
