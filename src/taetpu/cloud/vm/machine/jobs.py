"""A job as a folder: `job.json` (what was asked), `pid` (its process, the leader of a session), `log`, and `rc`, its
exit code, which comes last. It needs nobody to be logged in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from . import processes

BASE = ".taetpu"
"""In the home folder: whatever taetpu keeps there."""
ROOM = "rc.room"
"""Becomes `rc`: on a disk that is full in the end there must be room for the exit code."""
LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from machine import {0}; sys.exit({0}.main(sys.argv[2:]))"


class Job:
    """A job of a home folder, whether it is there or not."""

    def __init__(self, home: str, name: str):
        self.home, self.name, self.path = home, name, os.path.join(home, BASE, "jobs", name)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for; empty if there is no such job."""
        return self.read("job.json")

    @property
    def rc(self) -> int | None:
        """Its exit code; None before it has ended, and for ever if it was killed."""
        try:
            with open(os.path.join(self.path, "rc")) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    @property
    def state(self) -> str:
        """`running`, `ended`, or `lost`, when its processes ended without an exit code."""
        alive = self.leader() is not None  # before its exit code, which is the last that it writes
        return "ended" if self.rc is not None else "running" if alive else "lost"

    @property
    def log(self) -> str:
        return os.path.join(self.path, "log")

    def told(self) -> dict[str, Any]:
        """All that is known of it. Times are seconds since 1970, `folder` is as seen from the home folder."""
        return {
            "name": self.name,
            "state": self.state,
            "rc": self.rc,
            "commands": self.asked.get("commands", []),
            "folder": os.path.relpath(self.asked.get("folder", self.home), self.home),
            "preempted": os.path.exists(os.path.join(self.path, "preempted")),
            "began": modified(os.path.join(self.path, "job.json")),
            "wrote": modified(self.log),
            "bytes": os.path.getsize(self.log) if os.path.exists(self.log) else 0,
        }

    def leader(self) -> processes.Process | None:
        """The process that began it; None if it has ended, even if another has its number now."""
        told = self.read("pid")
        process = processes.find(told["pid"]) if told else None
        return process if process and process.started == told["started"] else None

    def members(self) -> list[processes.Process]:
        """Every process of it that lives, in whatever session."""
        leader = self.leader()
        others = [process for process in processes.everyone() if process.job == self.name]
        return [*others, leader] if leader and all(p.pid != leader.pid for p in others) else others

    def signal(self, number: int) -> None:
        """Send a signal to every process of it. What runs in a container, as root, hears it by docker and no second
        time by its client; a container also outlives a client that is killed, so it goes first.
        """
        members = self.members()
        if self.asked.get("image"):
            words = [*docker(), "kill", f"--signal={number}", container(self.name)]
            heard = subprocess.run(words, capture_output=True, check=False).returncode == 0
            if heard and number != signal.SIGKILL:
                leader = self.leader()
                members = [leader] if leader else []
        for process in members:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue

    def reclaim(self) -> None:
        """Make what a container wrote, as root, the login's own: a sync or a clean could not remove it otherwise."""
        if self.asked.get("image"):
            owner = f"{os.getuid()}:{os.getgid()}"
            words = [*as_root(), "chown", "-R", owner, "--", self.asked["folder"], self.path]
            subprocess.run(words, capture_output=True, check=False)

    def read(self, name: str) -> dict[str, Any]:
        try:
            with open(os.path.join(self.path, name)) as opened:
                return json.load(opened)
        except (OSError, ValueError):
            return {}

    def write(self, name: str, text: str) -> None:
        """A file as a whole or not at all."""
        temporary = os.path.join(self.path, f".{name}.{os.getpid()}")
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, os.path.join(self.path, name))


def of(home: str) -> list[Job]:
    """The jobs of a home folder, from the oldest on."""
    folder = os.path.join(home, BASE, "jobs")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [Job(home, name) for name in names if os.path.exists(os.path.join(folder, name, "job.json"))]
    return sorted(found, key=lambda job: (modified(os.path.join(job.path, "job.json")) or 0.0, job.name))


def modified(path: str) -> float | None:
    """When a file was last written; None if it is not there."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return None


def python(module: str, *words: str) -> list[str]:
    """The command that runs a module of this package, whatever lies in the folder that it is run in."""
    base = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-I", "-c", LAUNCH.format(module), base, *words]


def as_root() -> list[str]:
    """What makes a command root's: nothing for root himself."""
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


def docker(variables: Iterable[str] = ()) -> list[str]:
    """docker, as root where its socket is closed to this user; it sees some variables of this process."""
    socket = "/var/run/docker.sock"
    if not processes.is_socket(socket) or os.access(socket, os.W_OK):
        return ["docker"]
    kept = ",".join(variables)
    return [*as_root(), *([f"--preserve-env={kept}"] if kept else []), "docker"]


def container(name: str) -> str:
    """What a job's container is called."""
    return f"taetpu-{name}"
