"""Run `gcloud` commands and parse their JSON. On this computer, `taetpu.cloud` calls Google's APIs only through gcloud.

gcloud handles authentication, retries of single requests, and both TPU APIs. taetpu reacts differently to four kinds of
failure: `NoCapacity`, `NoQuota`, `NotAllowed` and `OutcomeUnknown`. Every error shows the command and, if there is one,
Google's whole message.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from taetpu.core.errors import UserError

SIGN_IN = "gcloud auth login && gcloud auth application-default login"
READ_LIMIT, CHANGE_LIMIT = 120.0, 300.0
"""Time limits in seconds for commands that only read and for commands that change something."""

PROPERTIES = {
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "CLOUDSDK_CORE_SHOW_STRUCTURED_LOGS": "never",
    "CLOUDSDK_CORE_USER_OUTPUT_ENABLED": "true", "CLOUDSDK_CORE_VERBOSITY": "warning",
}  # fmt: skip
"""Properties that determine gcloud's output and override the user's configuration."""

CAPACITY = (
    r"no more capacity|ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|no available capacity|stockout"
)
QUOTA = r"QUOTA_EXCEEDED|quotaExceeded|[Qq]uota limit|[Qq]uota '?\w*'? ?(was )?exceeded|exceeded.{0,40}quota"
ALLOWED = (
    r"PERMISSION_DENIED|does not have permission|SERVICE_DISABLED|has not been used in project|API .{0,80}not enabled"
    r"|Required '[\w.]+' permission|do not currently have an active account|[Rr]eauthentication|FORBIDDEN|HttpError 403"
)
UNKNOWN = (
    r"HTTPError 5\d\d|HttpError 5\d\d|\b50[0234]\b.{0,40}(Bad Gateway|Unavailable|Timeout|Internal)|UNAVAILABLE"
    r"|DEADLINE_EXCEEDED|ConnectionError|Connection (reset|refused|aborted)|RemoteDisconnected|timed out"
    r"|[Nn]etwork is unreachable|[Nn]ame resolution|BrokenPipe|IncompleteRead|There was a problem refreshing"
)
PARTIAL = "WARNING: Some requests did not succeed"
"""Message that gcloud prints with exit code 0 if it lacks a permission to list resources or a zone does not answer."""


class CloudError(UserError):
    """A gcloud command failed, or a machine did not respond as expected. Messages from Google are shown in full."""

    def __init__(self, problem: str, **about: Any):
        super().__init__(problem, **about)
        self.problem = problem


class NoCapacity(CloudError):
    """The zone currently has no capacity for this type. Another zone may have capacity."""

    exit_code = 3


class Preempted(NoCapacity):
    """The machine was preempted before it was ready."""


class NoQuota(CloudError):
    """The project's quota in the region is exceeded. Each region has a separate quota."""


class NotAllowed(CloudError):
    """The account lacks a permission or is signed out, or the API is disabled."""


class OutcomeUnknown(CloudError):
    """No answer arrived, so the change may have been made. The state must be read before the next change."""

    exit_code = 3


@dataclass(frozen=True)
class Command:
    """A gcloud command: the words after `gcloud`."""

    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(("gcloud", *self.words))


def command(*words: str, **flags: Any) -> Command:
    """Return the gcloud command with the given words and options.

    `zone="a"` becomes `--zone=a`, and `spot=True` becomes `--spot`. Options that are None, False or "" are omitted.
    """
    options = []
    for name, value in flags.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            options.append(option)
        elif value not in (None, False, ""):
            options.append(f"{option}={value}")
    return Command((*words, *options))


def use_project(project: str) -> None:
    """Set the project for all gcloud commands in this process, through an environment variable."""
    os.environ["CLOUDSDK_CORE_PROJECT"] = project


def read(command: Command) -> Any:
    """Run a command that only reads, and return its answer as plain data.

    Raises:
        CloudError: if the command failed; see `run`.
    """
    return run(command, READ_LIMIT)


def list_resources(command: Command) -> tuple[list[Any], list[str]]:
    """Run a command that lists resources in several zones.

    Returns:
        The resources, and the zones that did not answer. gcloud omits these zones from its output, so the zones are
        read from its log of the API's answers.

    Raises:
        CloudError: if the command failed; see `run`.
    """
    out, log = _execute(command, READ_LIMIT, {"CLOUDSDK_CORE_LOG_HTTP": "true"})
    return _parse(command, out) or [], _unreachable(log)


def change(command: Command, held: int | None = None) -> Any:
    """Run a command that changes something, and return its answer as plain data.

    Args:
        command: the command.
        held: a file descriptor that gcloud keeps open while it runs, even if this process is killed.

    Raises:
        OutcomeUnknown: if no answer arrived, so that the change may have been made.
        CloudError: if the command failed; see `run`.
    """
    return run(command, CHANGE_LIMIT, held)


def run(command: Command, limit: float, held: int | None = None) -> Any:
    """Run a command and return its parsed JSON.

    Args:
        command: the command.
        limit: time limit in seconds.
        held: a file descriptor that gcloud keeps open; see `change`.

    Raises:
        UserError: if gcloud is not installed.
        CloudError: if the command failed; the subclass gives the kind of failure.
    """
    return _parse(command, _execute(command, limit, held=held)[0])


def _execute(
    command: Command, limit: float, environment: Mapping[str, str] = MappingProxyType({}), held: int | None = None
) -> tuple[str, str]:
    """Run a command and return its standard output and error."""
    process = subprocess.Popen(
        [program("gcloud"), "--format=json", "--quiet", *command.words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
        env={**os.environ, **PROPERTIES, **environment}, pass_fds=() if held is None else (held,),
        start_new_session=True,  # Ctrl-C must not end gcloud between a request and its answer
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends its children
        process.communicate()
        raise OutcomeUnknown(f"`{command.shown}` did not answer within {limit:g} s") from None
    if process.returncode or re.search(rf"{PARTIAL}[^\0]*({ALLOWED})", err):
        raise failure(command, process.returncode, err)
    return out, err


def _parse(command: Command, out: str) -> Any:
    try:
        return json.loads(out) if out.strip() else None
    except json.JSONDecodeError:
        raise CloudError(f"`{command.shown}` printed no JSON: {out[:200]}", remedy="Update gcloud.") from None


def _unreachable(log: str) -> list[str]:
    """Return the zones that are unreachable according to the answers in gcloud's log.

    The APIs use different fields for these zones.
    """
    places: set[str] = set()
    for body in re.findall(r"^-- body start --\n(.*?)\n-- body end --$", log, re.DOTALL | re.MULTILINE):
        with suppress(json.JSONDecodeError):
            answer = json.loads(body)
            items = answer.get("items")
            scopes = items.items() if isinstance(items, dict) else ()
            places |= {*answer.get("unreachable", ()), *answer.get("unreachables", ())}
            places |= {scope for scope, answer in scopes if answer.get("warning", {}).get("code") == "UNREACHABLE"}
    return sorted(place.rpartition("/")[2] for place in places)


def failure(command: Command, code: int, err: str) -> CloudError:
    """Return the error for a command that ended with `code` and printed `err`."""
    start = max(err.rfind("\nERROR: "), err.rfind(PARTIAL), 0)  # omits the log before the message
    message = err[start:].strip() or f"exit code {code}"
    problem = f"`{command.shown}` failed:\n{message}"
    if re.search(CAPACITY, message):
        return NoCapacity(problem, remedy="Try another zone (--zone), --spot or a smaller slice, or try again later.")
    if re.search(QUOTA, message):
        remedy = "Use a region with quota, or request quota (https://cloud.google.com/tpu/docs/quota)."
        return NoQuota(problem, remedy=remedy)
    if re.search(ALLOWED, message):
        remedy = f"Sign in (`{SIGN_IN}`), or ask for the permission. `taetpu doctor` checks both."
        return NotAllowed(problem, remedy=remedy)
    if code < 0 or code > 128 or re.search(UNKNOWN, message):  # a signal ended gcloud, or no answer arrived
        return OutcomeUnknown(problem)
    return CloudError(problem)


def program(name: str) -> str:
    """Return the path of an installed program.

    Raises:
        UserError: if the program is not installed.
    """
    if path := shutil.which(name):
        return path
    remedies = {
        "gcloud": "Install it as described in https://cloud.google.com/sdk/docs/install.",
        "rsync": "Install it with `apt-get install rsync`.",
    }
    raise UserError(f"{name} is not installed", remedy=remedies.get(name, "Install OpenSSH's client."))
