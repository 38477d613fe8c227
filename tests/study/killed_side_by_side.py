"""Kill a study whose packs train side by side at random moments, and compare the outcome with an undisturbed study.

`python -m tests.study.killed_side_by_side 20 SEED` prints a line for each kill, and what differs in the end.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tests.small import TINY

from taetpu.store.addresses import find_study
from taetpu.store.study import StudyFolder

STUDY = TINY.replace("steps: 6", "steps: STEPS").replace("eval_every: 6", "eval_every: 300, checkpoint: eval") + (
    "seeds: 2\narms:\n  no-ffn: {model.ffn: none}\n  relu: {model.ffn: relu}\n  low: {train.optimizer.lr: 1e-4}\n"
    "  gelu: {model.ffn: gelu-erf}\n  geglu: {model.ffn: geglu}\n"
)
DRIVER = (
    "import sys; from taetpu.core.jax_setup import prepare_jax; prepare_jax(); from taetpu.train import beside;"
    "beside.LEAST_SECONDS = 0; import taetpu; taetpu.run('study.yaml', root=sys.argv[1])"
)


def start(folder: Path, root: str, *options: str) -> subprocess.Popen[bytes]:
    """Start the study in a process that trains packs side by side whatever they cost, with options of Python."""
    return subprocess.Popen([sys.executable, *options, "-c", DRIVER, root], cwd=folder, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a study, which must succeed."""
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()


def stored(folder: StudyFolder, arms: tuple[str, ...] = ()) -> dict[str, object]:
    """Return what is stored of the runs of some arms, or of all with the results, without times."""
    kept: dict[str, object] = {} if arms else {"results": folder.read_results()}
    for run in (run for run in folder.runs() if run.arm in arms or not arms):
        series = {name: (*each.step, *each.value) for name, each in run.metrics().items()}
        kept[run.key] = run.config(), run.read_model(), run.samples(), series
    return kept


def kill_at_random(folder: Path, kills: int, seed: int, steps: int) -> list[str]:
    """Run the study, killed `kills` times, and undisturbed. Return the names of what differs."""
    (folder / "study.yaml").write_text(STUDY.replace("STEPS", str(steps)))
    finish(start(folder, "whole"))
    moments = random.Random(seed)
    done = 0
    while done < kills:
        process, seconds = start(folder, "cut"), moments.uniform(2, 10)
        while process.poll() is None and not psutil.Process(process.pid).children():
            time.sleep(0.05)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            done += 1
            packs = [sorted(int(step.name) for step in pack.iterdir()) for pack in folder.glob("cut/tiny/packs/*")]
            ended = len(list(folder.glob("cut/tiny/runs/*/*/result.json")))
            print(f"kill {done}, {seconds:.1f} s in workers: checkpoints {packs}, runs done {ended}", flush=True)
            continue
        finish(process)  # which closes its pipe, too
        print(f"done after {done} kills")
        break
    finish(start(folder, "cut"))
    whole, cut = stored(find_study(folder / "whole")), stored(find_study(folder / "cut"))
    assert whole.keys() == cut.keys()
    return [name for name in whole if whole[name] != cut[name]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print("different:", kill_at_random(Path(place), int(sys.argv[1]), int(sys.argv[2]), steps=100_000))
