"""This machine: the settings, who is signed in, and the programs that are run."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from taetpu.cloud import settings as own
from taetpu.cloud.clients import EXTRA, FAKE, SIGN_IN
from taetpu.cloud.doctor.check import Check, fails, ok, skipped, warning
from taetpu.cloud.settings import Settings
from taetpu.core.errors import UserError

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
TOOLS = (  # name, how it is asked for its version, what it is for, Debian's package
    ("ssh", ("ssh", "-V"), "logging into machines", "openssh-client"),
    ("rsync", ("rsync", "--version"), "copying code to machines", "rsync"),
)
LIBRARIES = tuple(
    f"google-cloud-{name}" for name in ("artifact-registry", "billing", "build", "compute", "quotas", "storage", "tpu")
)
GCLOUD = "https://cloud.google.com/sdk/docs/install"
MACHINE = Path("/sys/class/dmi/id/product_name")
"""Says "Google Compute Engine" on a machine there, which has credentials of its own; google-auth looks here too."""


def settings(folder: Path, environment: Mapping[str, str]) -> tuple[Settings | None, Check]:
    """The settings that hold in a folder, None where they cannot be read."""
    try:
        found = own.read(folder, environment)
    except UserError as error:
        where = f" ({error.file}{' at ' + '.'.join(map(str, error.path)) if error.path else ''})" if error.file else ""
        return None, fails("settings", f"{error.problem}{where}", error.remedy or "")
    file = own.find(folder)
    named = f"project {found.project}" if found.project else "no project"
    if file is None:
        told = f"no {own.FILE} here or above, so the environment's and the defaults hold: {named}"
        return found, warning("settings", told, command="taetpu doctor --init")
    if not found.project:
        return found, fails(
            "settings", f"{file}: {named} is named", "write `project = ...` in it, or set TAETPU_PROJECT"
        )
    return found, ok("settings", f"{file}: {named}")


def owner(settings: Settings | None) -> Iterator[Check]:
    """Whether what is made has an owner of its own; nothing where it has."""
    if settings is not None and settings.shared:
        yield warning("owner", settings.shared, "set `owner` in taetpu.toml, or TAETPU_OWNER")


def credentials(environment: Mapping[str, str], settings: Settings | None) -> Check:
    """Who is signed in, without asking anybody: application-default credentials, and no key of a service account."""
    name = "credentials"
    if environment.get(FAKE):
        return ok(name, f"none are needed: {FAKE} is set, and the fake cloud asks nobody who he is")
    variable = environment.get(KEY_FILE, "")
    folder = environment.get("CLOUDSDK_CONFIG") or Path(environment.get("HOME") or Path.home()) / ".config/gcloud"
    path = Path(variable) if variable else Path(folder) / "application_default_credentials.json"
    if not path.is_file():
        if variable:
            return fails(name, f"{KEY_FILE} names {path}, which is not there", "unset it and sign in", SIGN_IN)
        if MACHINE.is_file() and "Google" in MACHINE.read_text(encoding="utf-8", errors="replace"):
            return ok(name, "those of this machine's service account")
        return fails(name, "nobody is signed in to Google Cloud here", command=SIGN_IN)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kind = str(data.get("type", "none"))
    except (OSError, ValueError, AttributeError):
        return fails(name, f"{path} cannot be read, or is no JSON", "sign in again", SIGN_IN)
    if kind == "service_account":
        remedy = "keys of service accounts leak: unset the variable, delete the key in IAM, and sign in as yourself"
        return fails(name, f"{path} is the key of a service account", remedy, SIGN_IN)
    if kind == "authorized_user" and not data.get("quota_project_id"):
        project = settings.project if settings and settings.project else "PROJECT"
        command = f"gcloud auth application-default set-quota-project {project}"
        return warning(name, f"{path} names no project that requests count for: some APIs refuse", command=command)
    return ok(name, f"{path} ({kind.replace('_', ' ')})")


def account(settings: Settings | None) -> Iterator[Check]:
    """Whom machines act as."""
    if settings is None or not settings.project:
        return
    if settings.service_account:
        yield ok("account", f"machines act as {settings.service_account}")
        return
    found = "machines act as the project's default service account, which in many projects may change everything"
    remedy = "one of their own with the bucket alone, named in taetpu.toml as service_account"
    yield warning(
        "account", found, remedy, f"gcloud iam service-accounts create taetpu-vm --project={settings.project}"
    )


def libraries() -> Check:
    """Google's clients: whether they are installed, with their versions."""
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name.removeprefix('google-cloud-')} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return fails("libraries", f"not installed: {', '.join(missing)}", command=EXTRA)
    return ok("libraries", f"google-cloud {', '.join(found)}")


def tools(settings: Settings | None, environment: Mapping[str, str]) -> Iterator[Check]:
    """The programs that are run: ssh, rsync and gcloud, with their versions."""
    for name, asked, purpose, package in TOOLS:
        told = _version(asked)
        if told is None:
            yield fails(name, f"not found: it is needed for {purpose}", command=f"sudo apt-get install {package}")
        else:
            yield ok(name, told)
    told = _version(("gcloud", "--version"))
    if told is not None:
        yield ok("gcloud", told)
    elif environment.get(FAKE):
        yield skipped("gcloud", "not found, and the fake cloud needs none: a real one does, for signing in and for ssh")
    elif settings and settings.external_ip:
        yield warning(
            "gcloud", "not found: it signs you in; machines with addresses are reached without", f"install it: {GCLOUD}"
        )
    else:
        yield fails("gcloud", "not found: it opens the tunnel to machines without an address", f"install it: {GCLOUD}")


def _version(command: tuple[str, ...]) -> str | None:
    """The first line that a program tells of its version; None where there is no such program."""
    if shutil.which(command[0]) is None:
        return None
    quiet = {"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1", "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **quiet}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (ended.stdout or ended.stderr).splitlines()
    return " ".join(lines[0].split()) if lines and ended.returncode == 0 else None
