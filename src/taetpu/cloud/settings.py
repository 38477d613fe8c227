"""Read the table `[cloud]` in `taetpu.toml` (project, zones, limits). Environment variables override the table."""

import getpass
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from taetpu.cloud.gcloud import SIGN_IN
from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.script_text import check_script_text

FILE, TABLE, PREFIX = "taetpu.toml", "cloud", "TAETPU_"
ZONE = r"[a-z]+-[a-z]+\d+-[a-z0-9]+"
PROJECT = r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
KEYS = re.compile(r"key|credential|password|token|json")

PATTERNS: Mapping[str, tuple[str, str]] = {
    "project": (PROJECT, "a project's ID, not its name or number; `gcloud projects list` shows it"),
    "region": (r"[a-z]+-[a-z]+\d+", "a region, such as us-east5"),
    "bucket": (r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "a bucket's name without gs://"),
    "user": (r"[a-z_][a-z0-9_-]{0,31}", "a Linux login name"),
    "service_account": (r"[^@\s/,]+@[^@\s/,]+", "an e-mail address, NAME@PROJECT.iam.gserviceaccount.com"),
    "network": (r"[a-z][a-z0-9/-]*", "the name of a network"),
    "subnetwork": (r"[a-z][a-z0-9/-]*", "the name of a subnetwork"),
    "zones": (ZONE, "a list of zones, such as us-east5-b"),
    "secrets": (r"[A-Za-z_]\w*(=[\w-]{1,255})?", "names of secrets, as in WANDB_API_KEY or WANDB_API_KEY=my-secret"),
}
"""Regular expression for values and a description for messages, by field."""


class Settings(Config):
    """Settings of the cloud commands. The environment variable `TAETPU_FIELD` overrides a field.

    There is no field for a key file, because gcloud manages the credentials.

    Attributes:
        project: ID of the Google Cloud project. Default: GOOGLE_CLOUD_PROJECT.
        owner: owner in the labels of machines; `down` and `gc` delete only this owner's machines. Default: the login.
        name: name of the machine that commands use by default.
        zones: zones for machines, in order of preference; empty for all zones that offer the slice.
        api: "gce" or "tpu-api"; empty for the default of the TPU generation.
        bucket: name of the bucket that stores studies. Default: PROJECT-taetpu.
        region: region of new buckets and images; empty for the region of the first zone.
        service_account: service account of machines; empty for the project's default account.
        user: login name on machines.
        network, subnetwork: names of the machines' network and subnetwork.
        external_ip: whether machines have an external address. If not, ssh connects through IAP.
        max_hours: hours after which a machine is deleted.
        max_usd: maximum cost of a machine in USD; None for no limit.
        idle_minutes: minutes without a job or login after which a machine deletes itself; 0 for never.
        image: container image of jobs; empty for a virtual environment on the machine.
        secrets: secrets in Secret Manager that jobs get as environment variables, as `NAME` or `NAME=secret-name`.
        poll_seconds: interval at which a state is polled.
        ready_minutes: time limit for a machine to accept ssh and finish its startup script.
        unknown_minutes: time for which the state is polled after a command whose outcome is unknown.
    """

    project: str = ""
    owner: str = ""
    name: str = ""
    zones: tuple[str, ...] = ()
    api: Literal["", "gce", "tpu-api"] = ""
    bucket: str = ""
    region: str = ""
    service_account: str = ""
    user: str = "taetpu"
    network: str = "default"
    subnetwork: str = ""
    external_ip: bool = False
    max_hours: Annotated[float, Field(gt=0, le=168)] = 4.0
    max_usd: Annotated[float, Field(gt=0)] | None = None
    idle_minutes: Annotated[int, Field(ge=0)] = 30
    image: str = ""
    secrets: tuple[str, ...] = ()
    poll_seconds: Annotated[float, Field(gt=0)] = 10.0
    ready_minutes: Annotated[float, Field(gt=0)] = 20.0
    unknown_minutes: Annotated[float, Field(gt=0)] = 5.0

    @model_validator(mode="after")
    def _check_patterns(self) -> "Settings":
        for name, (pattern, what) in PATTERNS.items():
            value = getattr(self, name)
            for text in value if isinstance(value, tuple) else filter(None, [value]):
                if not re.fullmatch(pattern, text, re.ASCII):
                    raise UserError(f"invalid `{name}`: {text!r}", path=(name,), remedy=f"Set `{name}` to {what}.")
        return self

    @property
    def secret_names(self) -> dict[str, str]:
        """Names of the secrets, by environment variable."""
        pairs = (secret.partition("=") for secret in self.secrets)
        return {variable: name or variable for variable, _, name in pairs}

    @property
    def default_region(self) -> str:
        """Region for new buckets and images: `region`, else the region of the first zone, else us-central1."""
        return self.region or (self.zones[0].rpartition("-")[0] if self.zones else "us-central1")


def check_zone(zone: str) -> str:
    """Return a zone's name if it is valid.

    Raises:
        UserError: if the name is not valid.
    """
    if re.fullmatch(ZONE, zone):
        return zone
    raise UserError(f"invalid zone {zone!r}", path=("--zone",), remedy="Use a name such as us-east5-b.")


def read_settings(folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that apply in a folder.

    The settings are read from `taetpu.toml` in the folder or in the nearest parent that contains this file. Environment
    variables override the file.

    Args:
        folder: the folder. Default: the current folder.
        environment: environment variables. Default: those of this process.

    Raises:
        UserError: if the file cannot be read, or a value is invalid.
    """
    environment = os.environ if environment is None else environment
    here = (folder or Path.cwd()).resolve()
    file = next((above / FILE for above in (here, *here.parents) if (above / FILE).is_file()), None)
    values = _read_table(file) if file else {}
    variables = {name: f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    given = {
        name: _parse(name, text) for name, variable in variables.items() if (text := environment.get(variable, ""))
    }
    try:
        settings = load_config(Settings, values | given, (TABLE,))
    except UserError as error:
        if (name := str(error.path[1] if len(error.path) > 1 else "")) in given:
            raise UserError(error.problem, path=(variables[name],), remedy=error.remedy) from None
        raise error.within(file=file) if file else error from None
    check_script_text(settings.image, "image", ("image",))
    project = settings.project or _check_project(environment.get("GOOGLE_CLOUD_PROJECT", ""))
    owner = settings.owner or environment.get("USER", "") or _login()
    bucket = settings.bucket or (re.sub("[.:]", "-", project) + "-taetpu" if project else "")
    return settings.model_copy(update={"project": project, "owner": owner, "bucket": bucket})


def _check_project(project: str) -> str:
    """Return the project of GOOGLE_CLOUD_PROJECT. It enters scripts, so other text than an ID is refused."""
    pattern, what = PATTERNS["project"]
    if project and not re.fullmatch(pattern, project, re.ASCII):
        path = ("GOOGLE_CLOUD_PROJECT",)
        raise UserError(f"invalid project {project!r}", path=path, remedy=f"Set GOOGLE_CLOUD_PROJECT to {what}.")
    return project


def _read_table(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", file=file) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        remedy = 'Put text in quotes and lists in brackets, as in zones = ["us-east5-b"].'
        raise UserError(f"invalid TOML: {error}", file=file, remedy=remedy) from None
    if extra := sorted(set(document) - {TABLE}):
        raise UserError(f"unknown table {extra[0]!r}", path=(extra[0],), file=file, remedy=f"Use [{TABLE}].")
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise UserError(f"`{TABLE}` must be a table", path=(TABLE,), file=file, remedy=f"Write a line [{TABLE}].")
    for name in table:
        if name not in Settings.model_fields and name != "secrets" and KEYS.search(name.lower()):
            problem = f"unknown setting {name!r}; taetpu reads no key files"
            raise UserError(problem, path=(TABLE, name), file=file, remedy=f"Remove it, and sign in with `{SIGN_IN}`.")
    return table


def _parse(name: str, text: str) -> Any:
    """Parse the value of an environment variable: text, a TOML number or boolean, or a comma-separated list."""
    default = Settings.model_fields[name].default
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(default, str):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return "unknown"
