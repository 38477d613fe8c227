"""Run jobs on one host. The host's system Python runs a copy of this file, which imports only the standard library.

A job has a folder `~/.taetpu/jobs/NAME` with `job.json` (the request), `pid` (ID of the process that leads the job's
process group), `log`, and `rc` (the exit code, written last). A job continues without an open connection. Usage:
`python3 agent.py ACTION <request.json`. The answer is printed as JSON. Exit code 4 means that the request was refused.
In this case, the reason is printed to standard error.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

JOBS = os.path.expanduser("~/.taetpu/jobs")
REFUSED = 4


class Refused(Exception):
    """The request is refused. The message gives the reason."""


def start(request):
    """Start a job unless it exists, and return its name. Raise `Refused` if the host is busy; see `refuse_if_busy`."""
    path = os.path.join(JOBS, request["name"])
    refuse_if_busy(request["name"])
    try:
        os.makedirs(path)
    except FileExistsError:
        if read_json(path, "job.json").get("id") != request["id"]:
            raise Refused(f"a job {request['name']} exists") from None
        return {"name": request["name"]}  # the request was repeated after a lost answer
    write_text(path, "job.json", json.dumps(request))
    with open(os.path.join(path, "log"), "ab") as log:
        subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "supervise", path],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    for _ in range(100):
        if os.path.exists(os.path.join(path, "pid")):
            break
        time.sleep(0.05)
    return {"name": request["name"]}


def supervise(path):
    """Run the commands of a job one after another until one fails, and store the exit code."""
    write_text(path, "pid", str(os.getpid()))
    job, code = read_json(path, "job.json"), 0
    folder = os.path.expanduser(os.path.join("~", job["folder"]))
    os.makedirs(folder, exist_ok=True)
    environment = {key: text.replace("{job}", path) for key, text in job["environment"].items()}
    variables = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONPATH=os.path.expanduser("~/.taetpu/src"), **environment)
    programs = [os.path.expanduser(name) for name in ("~/.taetpu/venv/bin", "~/.taetpu/bin")]
    variables["PATH"] = os.pathsep.join([*programs, variables.get("PATH", "")])
    signal.signal(
        signal.SIGTERM, lambda number, frame: None
    )  # the command also gets the signal; this process survives it to store the command's exit code
    try:
        for variable, secret in job["secrets"].items():
            words = ["gcloud", "secrets", "versions", "access", "latest", f"--secret={secret}"]
            variables[variable] = subprocess.check_output(words, text=True)
        for words in job["commands"]:
            code = subprocess.call(
                container_command(job, words, environment) if job["image"] else words, cwd=folder, env=variables
            )
            if code:
                break
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"taetpu: {error}", flush=True)
        code = 127
    write_text(path, "rc", str(code if code >= 0 else 128 - code))


def container_command(job, words, environment):
    """Return the docker command that runs a command in a container with access to the TPU and the home folder."""
    home = os.path.expanduser("~")
    variables = [part for key, value in environment.items() for part in ("--env", f"{key}={value}")]
    variables += [part for key in job["secrets"] for part in ("--env", key)]
    where = os.path.join(home, job["folder"])
    flags = ["--rm", "--privileged", "--net=host", f"--name=taetpu-{job['name']}", "-v", f"{home}:{home}", "-w", where]
    docker = ["docker"] if os.access("/var/run/docker.sock", os.W_OK) else ["sudo", "-n", "--preserve-env", "docker"]
    return [*docker, "run", *flags, *variables, job["image"], *words]


def state(request):
    """Return the host's jobs (oldest first), number of chips, processes that hold chips, and free disk space."""
    names = sorted(os.listdir(JOBS), key=lambda name: os.path.getmtime(os.path.join(JOBS, name, "job.json")))
    return {"jobs": [describe(name) for name in names], "chips": len(devices()), "holders": holders(),
            "free_bytes": shutil.disk_usage(os.path.expanduser("~")).free}  # fmt: skip


def stop(request):
    """End a job with SIGTERM, and with SIGKILL after `grace` seconds. Return the job's description."""
    path = os.path.join(JOBS, request["name"])
    pid = leader(path)
    if pid:
        open(os.path.join(path, "stopped"), "w", encoding="utf-8").close()
        for number, patience in ((signal.SIGTERM, request["grace"]), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                break
            end = time.time() + patience
            while leader(path) and time.time() < end:
                time.sleep(0.1)
            if not leader(path):
                break
    return describe(request["name"])


def clean(request):
    """Delete the folders of the given ended jobs (default: all ended jobs), and return the names of these jobs."""
    ended = [job["name"] for job in state({})["jobs"] if job["state"] != "running"]
    doomed = [name for name in ended if not request["names"] or name in request["names"]]
    for name in doomed:
        shutil.rmtree(os.path.join(JOBS, name))
    return doomed


def describe(name):
    """Return the description of a job: its state, exit code, commands and other properties.

    The state is `running`, `ended`, or `lost` if the job was killed and left no exit code.
    """
    path = os.path.join(JOBS, name)
    job, code, alive = read_json(path, "job.json"), read_text(path, "rc"), leader(path)
    log = os.path.join(path, "log")
    return {
        "name": name, "state": "ended" if code else "running" if alive else "lost", "rc": int(code) if code else None,
        "commands": job.get("commands", []), "folder": job.get("folder", ""), "pid": alive,
        "stopped": os.path.exists(os.path.join(path, "stopped")),
        "bytes": os.path.getsize(log) if os.path.exists(log) else 0,
    }  # fmt: skip


def refuse_if_busy(name):
    """Raise `Refused` if another job runs or a process holds the TPU. Otherwise, delete libtpu's lock file."""
    for job in state({})["jobs"]:
        if job["state"] == "running" and job["name"] != name:
            raise Refused(f"the job {job['name']} is running: {shlex.join((job['commands'] or [['?']])[0])}")
    if holders():
        pid, command = holders()[0]
        raise Refused(f"the TPU is held by process {pid} ({command})")
    with contextlib.suppress(OSError):
        os.remove("/tmp/libtpu_lockfile")


def devices():
    """Return the device files of the TPU chips."""
    vfio = (
        [f"/dev/vfio/{name}" for name in os.listdir("/dev/vfio") if name.isdigit()]
        if os.path.isdir("/dev/vfio")
        else []
    )
    return vfio + [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("accel")]


def holders():
    """Return the ID and command of each process that holds a TPU, among the processes that this user can read."""
    chips, processes = set(devices()), []
    for pid in filter(str.isdigit, os.listdir("/proc")) if chips else ():
        try:
            opened = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
            if chips & opened:
                processes.append((int(pid), read_text(f"/proc/{pid}", "comm").strip()))
        except OSError:
            continue
    return processes


def leader(path):
    """Return the process ID of a job's supervisor, or None if the supervisor has ended."""
    pid = read_text(path, "pid")
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            alive = os.fsencode(path) in file.read().split(b"\0")
    except OSError:
        return None
    return int(pid) if pid and alive else None


def read_text(path, name):
    """Return the text of a job's file, or "" if the file cannot be read."""
    try:
        with open(os.path.join(path, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path, name):
    """Return the content of a job's JSON file, or {} if the file cannot be read."""
    return json.loads(read_text(path, name) or "{}")


def write_text(path, name, content):
    """Write a job's file atomically."""
    with open(os.path.join(path, name + ".new"), "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(os.path.join(path, name + ".new"), os.path.join(path, name))


def main(arguments):
    """Run an action, print its answer, and return the exit code."""
    os.makedirs(JOBS, exist_ok=True)
    if arguments[0] == "supervise":
        supervise(arguments[1])
        return 0
    try:
        answer = {"start": start, "state": state, "stop": stop, "clean": clean}[arguments[0]](json.load(sys.stdin))
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
