"""What is yours: the project, the zones, the limits. From `taetpu.toml`, nearest first, and the environment over it."""

import getpass
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import Field, model_validator

from taetpu.cloud.clients import SIGN_IN
from taetpu.core.config import Config
from taetpu.core.errors import UserError, Where, suggest
from taetpu.core.loading import load

FILE = "taetpu.toml"
TABLE = "cloud"
PREFIX = "TAETPU_"

YES, NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
SHARED = {
    "admin", "app", "azureuser", "centos", "codespace", "coder", "colab", "debian", "docker", "ec2-user", "fedora",
    "gitpod", "guest", "jenkins", "jovyan", "kaggle", "node", "nobody", "opc", "rocky", "root", "runner", "student",
    "ubuntu", "unknown", "user", "vagrant", "vscode", "worker",
}  # fmt: skip
"""Logins that images and systems give to everybody: whose machines theirs are nobody can tell."""
ZONE = r"[a-z]+-[a-z]+\d+-[a-z0-9]+"
KEYS = re.compile(r"key|credential|secret|password|token|json")
"""What a field would be called that somebody wants to put a key file into."""


class Settings(Config):
    """The table `[cloud]` of `taetpu.toml`. Each field may also be set as `TAETPU_` and its name in capitals.

    There is no field for a key file: credentials are Google's application-default ones.

    Attributes:
        project: the Google Cloud project; else GOOGLE_CLOUD_PROJECT.
        owner: who makes things, a label on all of them (see `spec.label`); the login name otherwise.
        stack: the name of a TPU where a command says none.
        zones: where to look, in this order; empty: wherever the chip is, in `region` first, then the cheapest.
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
        secrets: of Secret Manager that jobs are given as variables, `NAME` or `NAME=the-secrets-own-name`; the machine
            reads them itself when a job begins.
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
    secrets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _plausible(self) -> "Settings":
        """Refuse what no API could take, before one is asked."""
        if self.project:
            check_project(self.project)
        if self.bucket:
            _check_bucket(self.bucket)
        for zone in self.zones:
            check_zone(zone, ("zones",), '["us-east5-b"]')
        if self.region:
            check_region(self.region)
        if self.backend not in ("", "gce", "tpu-api"):
            known = suggest(self.backend, ["gce", "tpu-api"])
            raise UserError(f"there is no backend {self.backend!r}", path=("backend",), remedy=known)
        if self.service_account and not re.fullmatch(r"[^@\s/]+@[^@\s/]+", self.service_account):
            remedy = f"its e-mail address, name@project.iam.gserviceaccount.com; for yourself: {SIGN_IN}"
            raise UserError(f"{self.service_account!r} is no account", path=("service_account",), remedy=remedy)
        for secret in self.secrets:
            if not re.fullmatch(r"[A-Za-z_]\w*(=[\w-]{1,255})?", secret, re.ASCII):
                remedy = '["WANDB_API_KEY"], or ["WANDB_API_KEY=my-secret"]: names alone, never what is secret'
                raise UserError("this names no secret of Secret Manager", path=("secrets",), remedy=remedy)
        return self

    @property
    def shared(self) -> str:
        """What is wrong with an owner whom many are; "" for one's own."""
        if self.owner.lower() not in SHARED:
            return ""
        return f"{self.owner}: shared by everybody who is {self.owner} in this project, with `down` and `gc`"

    @property
    def secret_names(self) -> dict[str, str]:
        """By variable: the secret that it gets its value from."""
        pairs = (secret.partition("=") for secret in self.secrets)
        return {variable: name or variable for variable, _, name in pairs}


def check_zone(zone: str, path: Where = ("--zone",), example: str = "us-east5-b") -> str:
    """A zone's name.

    Raises:
        UserError: it is none.
    """
    if re.fullmatch(ZONE, zone):
        return zone
    raise UserError(f"{zone!r} is no zone", path=path, remedy=f"zones are written {example}")


def check_region(region: str, path: Where = ("region",)) -> str:
    """A region's name.

    Raises:
        UserError: it is none.
    """
    if re.fullmatch(r"[a-z]+-[a-z]+\d+", region):
        return region
    if re.fullmatch(ZONE, region):
        raise UserError(
            f"{region!r} is no region but a zone", path=path, remedy=f"its region, {region[: region.rindex('-')]}"
        )
    raise UserError(f"{region!r} is no region", path=path, remedy="a region is written us-east5")


def check_project(project: str, path: Where = ("project",)) -> str:
    """A project's id, by https://docs.cloud.google.com/resource-manager/docs/creating-managing-projects; those of old
    have a domain before it.

    Raises:
        UserError: it is none.
    """
    if re.fullmatch(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        return project
    remedy = "its id, not its name or number: 6 to 30 lower-case letters, digits and hyphens, a letter first"
    raise UserError(f"{project!r} is no project's id", path=path, remedy=f"{remedy}; `gcloud projects list` shows it")


def _check_bucket(bucket: str) -> None:
    from taetpu.cloud.storage import SCHEME, check_bucket

    if bucket.startswith(SCHEME):
        name = bucket.removeprefix(SCHEME).partition("/")[0]
        raise UserError(f"{bucket!r} is an address", path=("bucket",), remedy=f"its name alone: {name!r}")
    try:
        check_bucket(bucket)
    except UserError as error:
        raise error.at("bucket") from None


def read(folder: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that hold in a folder: the nearest `taetpu.toml` at or above it, the environment's over its own.

    Raises:
        UserError: the file cannot be read, or a value is none that its field takes; it names the file, or the variable.
    """
    environment = os.environ if environment is None else environment
    file = find(folder or Path.cwd())
    values = _table(file) if file else {}
    own = _loaded(values, file)
    for name in Settings.model_fields:
        if text := environment.get(f"{PREFIX}{name.upper()}", ""):
            own = _overridden(own, name, text)
    if not own.project and (project := environment.get("GOOGLE_CLOUD_PROJECT", "")):
        check_project(project, ("GOOGLE_CLOUD_PROJECT",))
    fallbacks = {
        "project": own.project or environment.get("GOOGLE_CLOUD_PROJECT", ""),
        "owner": own.owner or environment.get("USER", "") or _login(),
    }
    return own.model_copy(update=fallbacks)


def find(folder: Path) -> Path | None:
    """The nearest `taetpu.toml` at or above a folder."""
    here = folder.resolve()
    return next((parent / FILE for parent in (here, *here.parents) if (parent / FILE).is_file()), None)


def parsed(file: Path) -> dict[str, Any]:
    """A file of settings as TOML has it.

    Raises:
        UserError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", file=file, remedy="give access to it") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        remedy = 'text stands in quotes, a list in brackets: zones = ["us-east5-b"]'
        raise UserError(f"this is no TOML: {error}", file=file, remedy=remedy) from None


def _table(file: Path) -> dict[str, Any]:
    document = parsed(file)
    if extra := sorted(set(document) - {TABLE}):
        remedy = f"only [{TABLE}] is read: put it below a line `[{TABLE}]`, or take it out"
        raise UserError(f"{extra[0]!r} is nothing that taetpu reads", path=(extra[0],), file=file, remedy=remedy)
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        remedy = f"a line `[{TABLE}]`, and the settings below it"
        raise UserError(f"{table!r} is no table of settings", path=(TABLE,), file=file, remedy=remedy)
    for name in table:
        if name not in Settings.model_fields and KEYS.search(name.lower()):
            remedy = f"take it out and sign in: {SIGN_IN}"
            problem = f"{name!r} is nothing that taetpu reads: it uses no key files"
            raise UserError(problem, path=(TABLE, name), file=file, remedy=remedy)
    return table


def _loaded(values: dict[str, Any], file: Path | None) -> Settings:
    try:
        return load(Settings, values, (TABLE,))
    except UserError as error:
        raise error.at(file=file) if file else error from None


def _overridden(own: Settings, name: str, text: str) -> Settings:
    """The settings with one of the environment's in place of its own.

    Raises:
        UserError: the value is none of the field; the message names the variable.
    """
    variable = f"{PREFIX}{name.upper()}"
    values = {field: getattr(own, field) for field in Settings.model_fields} | {name: _value(name, text, variable)}
    try:
        return load(Settings, values)
    except UserError as error:
        remedy = f"{error.remedy or 'set it to something else'}; or unset {variable}"
        raise UserError(f"{variable}={text!r}: {error.problem}", remedy=remedy) from None


def _value(name: str, text: str, variable: str) -> Any:
    """A value of the environment, as TOML would have it; a list is written with commas."""
    annotation = Settings.model_fields[name].annotation
    kinds = {annotation, *get_args(annotation), *(k for part in get_args(annotation) for k in get_args(part))}
    if get_origin(annotation) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if bool in kinds:
        if text.lower() not in YES | NO:
            raise UserError(
                f"{variable}={text!r} is neither true nor false", remedy="set it to true or false, or unset it"
            )
        return text.lower() in YES
    for kind in (float, int):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                what = "no number" if kind is float else "no whole number"
                raise UserError(f"{variable}={text!r} is {what}", remedy="set it to one, or unset it") from None
    return text


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"
