"""CPU cost of the live page for 50 running runs: its server and the browser.

Every run gets 20 points of two metrics each second, and has 2,000 at the start. Needs chromium. Use:
`python -m benchmarks.watching`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from taetpu.stats.plan import Plan
from taetpu.store.backend import open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

ARMS, SEEDS = ("baseline", *(f"arm{i}" for i in range(9))), tuple(range(5))
POINTS, BEFORE = 20, 2000
SECONDS = 30


def study(root: Path) -> list[RunFolder]:
    """Write a study whose runs have all started."""
    folder = StudyFolder(open_store(root), "many")
    plan = Plan("val/loss", "min", ARMS, SEEDS, (len(SEEDS),)).frozen()
    arms = {arm: {} for arm in ARMS}
    shared = {"study": "many", "base": {"model": {}}, "roles": {}, "design": {}, "measure": {"primary": "val/loss"}}
    folder.write_study({**shared, "arms": arms, "seeds": list(SEEDS), "plan": plan})
    runs = [folder.run(arm, seed, f"{seed:08x}") for arm in ARMS for seed in SEEDS]
    for run in runs:
        run.start({"arm": run.arm, "seed": run.seed, "config": {"model": {"dim": 8, "layers": [{}]}, "train": {}}})
    return runs


def grow(runs: list[RunFolder], step: int) -> None:
    """Append the next points of every run."""
    steps = list(range(step + 1, step + POINTS + 1))
    for run in runs:
        series = {"train/loss": (steps, [1 / s for s in steps]), "val/loss": (steps[-1:], [1 / steps[-1]])}
        run.append(step, step + POINTS, series)


def seconds(processes: list[psutil.Process]) -> float:
    """Return the core seconds that processes have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    """Observe for a while and print the shares of one core."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        runs = study(Path(root))
        for step in range(0, BEFORE, POINTS):
            grow(runs, step)
        command = [sys.executable, "-m", "taetpu", "ui", root, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            link = re.search(r"http\S+", server.stdout.readline())
            assert link is not None
            there, token = link[0].split("/?")
            executable = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.goto(f"{there}/study/many?{token}")
            page.wait_for_timeout(4000)
            watched = {
                "server": [psutil.Process(server.pid)],
                "browser": [p for p in psutil.Process().children(recursive=True) if "chrom" in p.name()],
            }
            before, began = {name: seconds(own) for name, own in watched.items()}, time.monotonic()
            for second in range(SECONDS):
                grow(runs, BEFORE + POINTS * second)
                page.wait_for_timeout(max(0.0, 1000 * (began + second + 1 - time.monotonic())))
            took = time.monotonic() - began
            for name, own in watched.items():
                print(f"{name}: {100 * (seconds(own) - before[name]) / took:.1f} % of a core over {took:.0f} s")
            browser.close()
            server.terminate()


if __name__ == "__main__":
    main()
