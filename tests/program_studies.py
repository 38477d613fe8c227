"""A tiny program with the interface of a training script, and studies whose runs are this program."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TRAIN = '''\
"""Prints a loss that falls with the step. Settings are words such as --lr=0.1."""
import json, os, random, sys, time

settings = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
folder = settings.get("out", "")
noise = random.Random(settings["seed"])
state = os.path.join(folder, "state.json") if folder else ""
first = 1 + (json.load(open(state)) if state and os.path.exists(state) else 0)
offsets = [noise.gauss(0, 0.01) for _ in range(100)]
for step in range(first, int(settings.get("steps", 3)) + 1):
    time.sleep(float(settings.get("sleep", 0)))
    print(f"step {step}: loss {1 / step + float(settings['lr']) + offsets[step]:.6f}", flush=True)
    if state:
        with open(state + ".part", "w") as file:
            json.dump(step, file)
        os.replace(state + ".part", state)
'''
PATTERN = r"step (?P<step>\d+): loss (?P<loss>\S+)"
STUDY: dict[str, Any] = {
    "study": "tiny",
    "program": {
        "command": [sys.executable, "train.py", "--{key}={value}", "--seed={seed}"],
        "metrics": {"stdout": PATTERN},
    },
    "base": {"lr": 0.1, "bias": False},
    "seeds": 2,
    "arms": {"high": {"lr": 0.5}},
    "measure": {"primary": "loss", "better": "min"},
}


def study_data(**changes: Any) -> dict[str, Any]:
    """Return the content of the tiny study's file with other top-level keys; `program` changes single keys of it."""
    program = {**STUDY["program"], **changes.pop("program", {})}
    return {**STUDY, **changes, "program": program}


def write_study(folder: Path, source: str = TRAIN, **changes: Any) -> Path:
    """Write the program and a study file to a folder, and return the file."""
    (folder / "train.py").write_text(source)
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study_data(**changes), sort_keys=False))
    return file


def written(results: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return the values of each arm's runs."""
    return {arm["name"]: [run["value"] for run in arm["runs"]] for arm in results["arms"]}
