"""Exporting a study as a Slurm array, as managed SkyPilot jobs, or as an indexed Kubernetes Job for Kueue.

Each task of the job runs `taetpu run STUDY --root ROOT --shard I/N`, where I is the rank that the scheduler assigns.
The store records finished runs, so a scheduler may kill and repeat tasks at any time.
"""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted
from ruamel.yaml.scalarstring import LiteralScalarString as Literal

from taetpu.core.chips import Slice
from taetpu.core.errors import UserError
from taetpu.core.script_text import check_script_text

WAITS, INTERRUPTED, FAILED, REFUSED = 75, 130, 3, 2
"""Exit codes of `taetpu run`: waiting for other shards (--no-wait), interrupted, failed runs, invalid input."""
SIGNAL_SECONDS = 90
"""Slurm sends SIGTERM this many seconds before the time limit, so that a checkpoint is stored (submitit's default)."""
ACCELERATORS = {
    "v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}  # fmt: skip
"""GKE names of TPU generations, https://github.com/AI-Hypercomputer/xpk (src/xpk/core/system_characteristics.py)."""
CONFIG_MAP_BYTES = 1 << 20
"""Maximum size of a ConfigMap: https://kubernetes.io/docs/concepts/configuration/configmap/."""


@dataclass(frozen=True)
class Share:
    """The command that every task runs. Only the rank differs between tasks.

    Attributes:
        study: name of the study.
        words: arguments of `taetpu run` that follow the study file.
        shards: number of tasks.
        staged: whether packs are planned in several stages. Between stages, tasks wait for each other.
    """

    study: str
    words: tuple[str, ...]
    shards: int
    staged: bool = False

    @property
    def name(self) -> str:
        """A unique name for the study that Kubernetes and SkyPilot accept."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.study.lower()).strip("-")[:30].rstrip("-")
        if plain == self.study:
            return f"taetpu-{plain}"
        return f"taetpu-{plain}-{hashlib.sha256(self.study.encode()).hexdigest()[:6]}".replace("--", "-")

    def command(self, python: str, file: str, rank: str) -> str:
        """Return the shell command. `rank` is the environment variable with the task's number, starting from 0.

        Raises:
            UserError: if a path or an argument has a control character.
        """
        for what, text in (("interpreter", python), ("study file", file), *(("argument", word) for word in self.words)):
            check_script_text(text, what)
        words = shlex.join([python, "-u", "-m", "taetpu", "run", file, *self.words])
        return f'{words} --shard "${rank}/{self.shards}"' + (" --no-wait" if self.staged else "")


def slurm_script(share: Share, file: Path, logs: Path) -> str:
    """Return an sbatch script with the options and log names of submitit 1.5.4.

    If a task has to wait for other shards or reaches its time limit, it is queued again and its node becomes free.

    Args:
        share: the command of each task.
        file: the study file, on a file system that all nodes mount.
        logs: folder for `JOB_TASK_0_log.out` and `.err`. It must exist before `sbatch` is called.

    Raises:
        UserError: if a path or an argument has a control character.
    """
    log = check_script_text(f"{logs.resolve()}", "folder").replace("%", "%%") + "/%A_%a_0_log"
    options = {
        "array": f"0-{share.shards - 1}", "error": f"{log}.err", "job-name": share.name, "nodes": "1", "ntasks": "1",
        "open-mode": "append", "output": f"{log}.out", "signal": f"TERM@{SIGNAL_SECONDS}",
    }  # fmt: skip
    lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items()]
    command = share.command(sys.executable, str(file.resolve()), "SLURM_ARRAY_TASK_ID")
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {share.study} in {share.shards} shards. Options override these lines, as in sbatch --time=4:00:00 FILE",
            "",
            "# Parameters",
            *lines,
            "#SBATCH --requeue",
            "",
            "# command",
            f"srun --unbuffered {command}",
            "code=$?",
            f"# {WAITS}: the stage waits for other shards. {INTERRUPTED}: stopped by a signal, with a checkpoint.",
            f"if [ $code -eq {WAITS} ] || [ $code -eq {INTERRUPTED} ]; then",
            '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" && exit 0',
            "fi",
            "exit $code",
            "",
        ]
    )


def skypilot_task(share: Share, base: Path, files: Sequence[str], tpu: Slice, install: str, spot: bool) -> str:
    """Return a task for `sky jobs launch --num-jobs N`, with one managed job and machine for each shard.

    If a job has to wait for other shards, it ends successfully and its machine is deleted. The other jobs train the
    remaining packs. Such a job is not restarted by its exit code, because SkyPilot would delete the machine and
    immediately create another one.

    Args:
        share: the command of each job.
        base: the folder that `files` are relative to.
        files: the study file, followed by its plug-ins and texts.
        tpu: the slice of each machine.
        install: the argument of `pip install` on the machines.
        spot: whether to use spot machines.

    Raises:
        UserError: if SkyPilot cannot create this slice, the slice has several hosts, or a path or an argument has a
            control character.
    """
    if tpu.generation.runtime is None:
        problem = f"SkyPilot creates TPUs through the Cloud TPU API, which does not offer {tpu.generation.name}"
        raise UserError(problem, path=("--tpu",), remedy="Use `taetpu export kueue`, or another generation.")
    _one_host(tpu, share)
    check_script_text(install, "package", ("--install",))
    for name in files:
        check_script_text(str(base / name), "file")
    resources: dict[str, Any] = {
        "infra": "gcp",
        "accelerators": f"tpu-{tpu.name}",
        "accelerator_args": {"runtime_version": tpu.generation.runtime, "tpu_vm": True},
        "use_spot": spot,
        "job_recovery": {"recover_on_exit_codes": [INTERRUPTED]},
    }
    command = share.command("python", files[0], "SKYPILOT_JOB_RANK")
    if share.staged:
        command += f" || {{ code=$?; [ $code -eq {WAITS} ] || exit $code; }}"
    task = {
        "name": share.name,
        "resources": resources,
        "file_mounts": {Quoted(f"~/study/{name}"): Quoted(base / name) for name in files},
        "setup": Literal(f"pip install {shlex.quote(install)}\n"),
        "run": Literal(f"cd ~/study\n{command}\n"),
    }
    comment = f"{share.study} in {share.shards} shards: sky jobs launch --num-jobs {share.shards} THIS_FILE"
    return _yaml(comment, task)


def kueue_job(
    share: Share, base: Path, files: Sequence[str], tpu: Slice, image: str, queue: str, account: str, spot: bool
) -> str:
    """Return a ConfigMap with the study's files and an indexed Job for GKE with one index per shard.

    Args:
        share: the command of each pod.
        base: the folder that `files` are relative to.
        files: the study file, followed by its plug-ins and texts.
        tpu: the slice that each index uses.
        image: a container image with taetpu.
        queue: name of the Kueue LocalQueue.
        account: the Kubernetes service account. It must have write access to the bucket.
        spot: whether to use spot nodes.

    Raises:
        UserError: if GKE does not offer the slice, the slice has several hosts, the files are too large, or a path or
            an argument has a control character.
    """
    if (accelerator := ACCELERATORS.get(tpu.generation.name)) is None:
        remedy = f"Use one of {', '.join(ACCELERATORS)}, e.g. v5e-8."
        raise UserError(f"no node label of GKE is known for {tpu.generation.name}", path=("--tpu",), remedy=remedy)
    _one_host(tpu, share)
    for name in files:
        check_script_text(name, "file")
    selector = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": Quoted(tpu.topology_name.partition(":")[2]),
    } | ({"cloud.google.com/gke-spot": Quoted("true")} if spot else {})
    command = share.command("python", files[0], "JOB_COMPLETION_INDEX")
    pod: dict[str, Any] = {
        "serviceAccountName": Quoted(account),
        "restartPolicy": "Never",
        "nodeSelector": selector,
        "containers": [
            {
                "name": "taetpu",
                "image": Quoted(image),
                "workingDir": "/study",
                "command": ["sh", "-c", Literal(f"exec {command}\n")],
                "resources": {kind: {"google.com/tpu": Quoted(tpu.chips_per_host)} for kind in ("requests", "limits")},
                "volumeMounts": [{"name": "study", "mountPath": "/study"}],
            }
        ],
        "volumes": [{"name": "study", "configMap": {"name": share.name, "items": _items(files)}}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": share.name, "labels": {"kueue.x-k8s.io/queue-name": Quoted(queue)}},
        "spec": {
            "suspend": True,  # Kueue starts the Job
            "completionMode": "Indexed",
            "completions": share.shards,
            "parallelism": share.shards,
            "backoffLimitPerIndex": 5,
            "podFailurePolicy": {"rules": _rules()},
            "template": {"spec": pod},
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": share.name}, **_contents(base, files)}
    return _yaml(f"{share.study} on {tpu.name}: kubectl apply -f THIS_FILE", config, job)


def _rules() -> list[dict[str, Any]]:
    """Return the rules for failed pods.

    Pods that were evicted or interrupted, or that have to wait for other shards, are replaced and do not count as
    failures. The delay before a replacement doubles each time, and no node is occupied during the delay.
    """

    def codes(*values: int) -> dict[str, Any]:
        return {"onExitCodes": {"containerName": "taetpu", "operator": "In", "values": sorted(values)}}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": Quoted("True")}]},
        {"action": "Ignore", **codes(WAITS, INTERRUPTED)},
        {"action": "FailIndex", **codes(REFUSED, FAILED)},
    ]


def _items(files: Sequence[str]) -> list[dict[str, str]]:
    """Return the path for each key of the ConfigMap. Keys are numbered, because they must not contain a slash."""
    return [{"key": f"file-{number}", "path": Quoted(name)} for number, name in enumerate(files)]


def _contents(base: Path, files: Sequence[str]) -> dict[str, Any]:
    """Return the contents of text files as `data` of a ConfigMap.

    Raises:
        UserError: if the files together exceed the maximum size of a ConfigMap.
    """
    contents = {f"file-{number}": (base / name).read_bytes() for number, name in enumerate(files)}
    if (size := sum(map(len, contents.values()))) > CONFIG_MAP_BYTES:
        remedy = "Use smaller texts, or `taetpu export skypilot`, which copies files of any size."
        problem = f"the study's files have {size} bytes, but a ConfigMap can hold at most {CONFIG_MAP_BYTES}"
        raise UserError(problem, file=base / files[0], remedy=remedy)
    texts = {key: content.decode() for key, content in contents.items()}
    return {"data": {key: Literal(text) if _is_plain(text) else Quoted(text) for key, text in texts.items()}}


def _is_plain(text: str) -> bool:
    return text.translate({9: " ", 10: " "}).isprintable()


def _one_host(tpu: Slice, share: Share) -> None:
    """Raise `UserError` if a slice has several hosts. Each shard is trained by one host."""
    if tpu.hosts > 1:
        problem = f"{tpu.name} has {tpu.hosts} hosts, but each of the {share.shards} shards is trained by one host"
        single = f"{tpu.generation.names[0]}-{max(tpu.generation.single_host_chips) * tpu.generation.per_chip}"
        raise UserError(problem, path=("--tpu",), remedy=f"Use {single}.")


def _yaml(comment: str, *documents: Mapping[str, Any]) -> str:
    """Return documents as YAML. User-defined names are quoted so that YAML 1.1 and 1.2 parsers read them alike."""
    yaml, text = YAML(), StringIO()
    yaml.width, yaml.default_flow_style = 1 << 16, False
    yaml.dump_all(documents, text)
    return f"# {comment}\n{text.getvalue()}"
