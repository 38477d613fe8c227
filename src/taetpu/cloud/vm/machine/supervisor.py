"""The process that a job is: runs its commands one after the other and writes down how they ended. It leads a session
of its own, so that the end of a login is not its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from . import cloud, processes
from .jobs import BASE, ROOM, Job, container, docker

WITHOUT = 126
"""A job's exit code where it was not begun for want of a secret."""


def main(words: list[str]) -> int:
    """Run the job of a name."""
    job, home = Job(os.path.expanduser("~"), words[0]), os.path.expanduser("~")
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))  # its commands hear it, too; it waits for them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = processes.find(os.getpid())
    job.write("pid", json.dumps({"pid": os.getpid(), "started": own.started if own else 0}))
    asked = job.asked
    environment = _environment(asked, home, job.path)
    code = 0
    with open(job.log, "ab", buffering=0) as log:
        try:
            environment.update(_secrets(asked["secrets"]))
        except (OSError, ValueError, LookupError) as error:
            log.write(f"taetpu: cannot read the secrets of this job: {error}\n".encode())
            code = WITHOUT
        for command in asked["commands"]:
            if stopped and not code:
                code = 128 + signal.SIGTERM  # what is left of it is not begun
            if code:
                break
            code = _run(_contained(command, asked, home, environment), asked["folder"], environment, log)
    job.reclaim()
    code = 128 - code if code < 0 else code
    with open(os.path.join(job.path, ROOM), "r+") as file:
        file.write(f"{code:03d}")
    os.replace(os.path.join(job.path, ROOM), os.path.join(job.path, "rc"))
    return 0


def _secrets(names: dict[str, str]) -> dict[str, str]:
    """Variables with what is secret: in the processes' memory alone, in no file, no command line and no log."""
    if not names:
        return {}
    with open(os.path.join(processes.ROOT or "/var/lib/taetpu", "facts.json")) as file:
        project = json.load(file)["project"]
    return {variable: cloud.secret(project, name) for variable, name in names.items()}


def _run(words: list[str], folder: str, environment: dict[str, str], log: Any) -> int:
    """A command's exit code; 127 if it cannot be run."""
    try:
        child = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except OSError as error:
        log.write(f"taetpu: cannot run {words[0]!r}: {error.strerror}\n".encode())
        return 127
    return child.wait()


def _environment(asked: dict[str, Any], home: str, path: str) -> dict[str, str]:
    """`{job}` in what was asked for is the job's folder."""
    own, base = dict(os.environ), os.path.join(home, BASE)
    own["PATH"] = os.path.join(base, "venv", "bin") + os.pathsep + own.get("PATH", os.defpath)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.join(base, "src"), own.get("PYTHONPATH", "")]))
    own.update(PYTHONUNBUFFERED="1", TAETPU_JOB=asked["name"], TAETPU_JOB_FOLDER=path)
    own.update({key: text.replace("{job}", path) for key, text in asked["environment"].items()})
    return own


def _contained(command: list[str], asked: dict[str, Any], home: str, environment: dict[str, str]) -> list[str]:
    """A command as it is, or in a container that sees the home folder under the same path, the TPU and the network.

    The image is there since the machine was set up: to fetch it now would keep a job that is stopped from ending.
    """
    if not asked["image"]:
        return command
    given = ["PYTHONPATH", "PYTHONUNBUFFERED", "TAETPU_JOB", "TAETPU_JOB_FOLDER", *asked["environment"]]
    given += [key for key in environment if key.startswith("TPU_")]
    variables = [word for key in dict.fromkeys(given) for word in ("--env", f"{key}={environment[key]}")]
    variables += [word for key in asked["secrets"] for word in ("--env", key)]  # docker takes it from its environment
    options = [
        "--rm",
        "--pull=never",
        "--privileged",
        "--net=host",
        "--name",
        container(asked["name"]),
        "--volume",
        f"{home}:{home}",
    ]
    return [
        *docker(asked["secrets"]),
        "run",
        *options,
        "--workdir",
        asked["folder"],
        *variables,
        asked["image"],
        *command,
    ]
