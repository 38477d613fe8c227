"""The end of this machine: it deletes itself when its time is over or when nobody uses it, whatever has become of who
made it; and it tells jobs when it is about to be preempted. Needs the right to delete itself; retries until it is gone.

Where the API deletes machines by itself (Compute Engine's `max_run_duration`) this is the second lock on the door.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from . import jobs, processes
from .cloud import Own, metadata
from .neighbours import Neighbours

PRIVATE = processes.ROOT or "/var/lib/taetpu"
STUCK = 4
"""A machine where a process lives may do nothing for so many times as long as one where none does."""
TRICKLE = 0.01
"""Processors' time per time below which a process counts as doing nothing."""
FILES = 20_000
"""Files of a job's folder that are looked at for progress."""


class Activity:
    """When somebody last did something here: logged in, typed, used the processor, wrote a log or a checkpoint.

    What cannot be known counts as activity.
    """

    def __init__(self, homes: str, now: float):
        self.homes, self.last, self.working = homes, now, False
        self.seen = now
        self.logins, self.ticks = set(), {}  # type: ignore[var-annotated]

    def look(self, now: float) -> None:
        """Take note of what has happened since the last look."""
        try:
            self.last = max(self.last, min(now, self._latest(now)))
        except Exception as error:
            say(f"cannot tell whether anybody is here, so somebody is: {error!r}")
            self.last = now
        self.seen = now

    def quiet(self, now: float, minutes: float) -> bool:
        """Whether nothing has been done for so long that nobody will miss the machine."""
        return now - self.last >= 60 * minutes * (STUCK if self.working else 1)

    def _latest(self, now: float) -> float:
        """The latest sign of anybody, in seconds since 1970."""
        watched = [p for p in processes.everyone() if p.job or p.login]
        held = {pid for pid, _, _ in processes.holders()}
        watched += [p for p in map(processes.find, held) if p and not (p.job or p.login)]
        self.working = any(p.job or p.pid in held or p.name not in processes.SHELLS for p in watched)
        latest = self._newest()
        logins = {p.login for p in watched if p.login}
        ticks = {(p.pid, p.started): p.ticks for p in watched}
        used = sum(count - self.ticks.get(key, 0) for key, count in ticks.items()) / os.sysconf("SC_CLK_TCK")
        if logins - self.logins or used > TRICKLE * (now - self.seen):
            latest = now
        self.logins, self.ticks = logins, ticks
        terminals = {p.environment["SSH_TTY"] for p in watched if "SSH_TTY" in p.environment}
        return max([latest, *(os.stat(path).st_atime for path in terminals if os.path.exists(path))])

    def _newest(self) -> float:
        """When the newest file was written of those that show progress."""
        newest = 0.0
        for home in glob.glob(self.homes):
            newest = max(newest, jobs.modified(os.path.join(home, jobs.BASE, "asked")) or 0.0)
            for job in jobs.of(home):
                folders = [job.path, job.asked.get("folder", "")] if job.state == "running" else [job.path]
                newest = max([newest, *(_newest_below(folder) for folder in folders if folder)])
        return newest


def _newest_below(folder: str) -> float:
    newest, count = 0.0, 0
    for parent, _, names in os.walk(folder):
        newest = max([newest, *(jobs.modified(os.path.join(parent, name)) or 0.0 for name in names)])
        count += len(names)
        if count > FILES:
            break
    return newest


class Guard:
    """Looks at the clock and at what is going on.

    Args:
        facts: of the machine: `stack`, `project`, `backend`, `hours`, `idle_minutes` (None: never), `hosts`.
        homes: where people's home folders are, a pattern.
    """

    def __init__(self, facts: dict[str, Any], homes: str):
        self.facts, self.homes = facts, homes
        self.own, self.activity = Own(facts), Activity(homes, time.time())
        self.neighbours = Neighbours(facts["hosts"], homes, self.idle)
        self.expires = _first_boot() + 3600 * facts["hours"]

    def reason(self) -> str:
        """Why the machine should go now; "" while it should stay."""
        now = time.time()
        if now >= self.expires:
            return "its time is over"
        self.activity.look(now)
        if self.idle() and self.neighbours.idle():
            return f"nobody has used it for {(now - self.activity.last) / 60:.1f} minutes"
        return ""

    def idle(self) -> bool:
        """Whether nobody uses this host."""
        minutes = self.facts["idle_minutes"]
        return minutes is not None and self.activity.quiet(time.time(), minutes)

    def watch(self, pause: float) -> None:
        """Look until there is a reason to go; then ask to be deleted, again and again, until it is gone."""
        while not (reason := self.reason()):
            time.sleep(pause)
        say(f"deleting itself: {reason}")
        while True:
            for step in (self.own.delete, self._look):
                try:
                    step()
                except (OSError, ValueError, KeyError) as error:
                    say(f"cannot delete itself, and tries again: {error}")
            time.sleep(pause)

    def _look(self) -> None:
        say("its end has been asked for" if self.own.there() else "there is nothing left to delete")


def tell_of_preemption(homes: str) -> None:
    """Wait until the machine is about to be preempted, and send SIGTERM to every job: half a minute is left."""
    query = ""
    while True:
        try:
            told, version = metadata("instance/preempted", timeout=90, query=query)
            if told == "TRUE":
                break
            query = f"?wait_for_change=true&timeout_sec=60&last_etag={version}"
        except OSError:
            time.sleep(1)
    for job in (job for home in glob.glob(homes) for job in jobs.of(home)):
        if job.state == "running":
            say(f"the machine is preempted: SIGTERM to {job.name}")
            job.write("preempted", f"{time.time():.0f}\n")
            job.signal(signal.SIGTERM)


def say(line: str) -> None:
    """To the guard's log, unless it is what was said last."""
    if line != _said[-1]:
        _said[:] = [line]
        with open(os.path.join(PRIVATE, "guard.log"), "a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")


_said = [""]


def _first_boot() -> float:
    """When this machine booted first, in seconds since 1970."""
    path = os.path.join(PRIVATE, "since")
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write(f"{time.time():.0f}")
    return os.path.getmtime(path)


def main(words: list[str]) -> int:
    """Run for ever, with `facts.json` of the private folder; the word is a pattern of home folders."""
    homes = words[0]
    with open(os.path.join(PRIVATE, "facts.json")) as file:
        facts = json.load(file)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=tell_of_preemption, args=(homes,), daemon=True).start()
    guard = Guard(facts, homes)
    guard.neighbours.serve(PRIVATE)
    say(f"on guard (process {os.getpid()})")
    guard.watch(float(os.environ.get("TAETPU_GUARD_SECONDS", "30")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
