"""Small packs of different structures that share one NVIDIA GPU, compared with the same packs one after another.

`python -m benchmarks.gpu_shared` runs a study of eight structures and four seeds with 1, 2 and 4 packs at once
(`TAETPU_PACKS_PER_GPU`), each in a fresh process, in turns. The first run of each compiles and autotunes; the times of
the others are printed. It fails if values of the primary metric differ between them in any bit. `--device cpu --small`
goes through all of it at tiny sizes; packs never share a CPU, so its figures mean nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME = "shared"
STUDY = """\
study: shared
base:
  task: {kind: copy, seq_len: SEQ, min_length: 2, max_length: 6, eval_size: 64}
  model: {dim: DIM, num_layers: 4, mixer: {kind: attention, num_heads: 4}}
  train: {steps: STEPS, batch_size: 8, sample: none}
seeds: 4
arms:
  relu: {model.ffn: relu}
  geglu: {model.ffn: geglu}
  no-ffn: {model.ffn: none}
  layer-norm: {model.norm: layer}
  alibi: {model.position: alibi}
  one-head: {model.mixer.num_heads: 1}
  three-layers: {model.num_layers: 3}
"""


def run(study: Path, shared: int, number: int, device: str) -> tuple[float, dict[str, float]]:
    """Run the study in a fresh process; return its seconds, and the primary metric of each run."""
    root = study.parent / f"{shared}-{number}"
    environment = {
        **os.environ, "TAETPU_PACKS_PER_GPU": str(shared), "TAETPU_CACHE": str(study.parent / f"cache-{shared}"),
        "TAETPU_ROOT": str(root), "JAX_PLATFORMS": device,
    }  # fmt: skip
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "taetpu", "run", str(study)], env=environment, check=True, text=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    seconds = time.perf_counter() - began
    results = json.loads((root / NAME / "results.json").read_text())
    return seconds, {f"{arm['name']}/{run['seed']}": run["value"] for arm in results["arms"] for run in arm["runs"]}


def main() -> int:
    """Print the median seconds for each number of packs at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4], help="packs that share the GPU")
    parser.add_argument("--rounds", type=int, default=2, help="warm runs of each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    asked = parser.parse_args()
    if asked.device == "cuda" and not any(Path("/dev").glob("nvidia[0-9]*")):
        print("no NVIDIA GPU is here: nothing was measured")
        return 0
    sizes = {"SEQ": 16, "DIM": 16, "STEPS": 8} if asked.small else {"SEQ": 128, "DIM": 128, "STEPS": 2000}
    text = STUDY
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    seconds: dict[int, list[float]] = {shared: [] for shared in asked.at_once}
    values = {}
    with tempfile.TemporaryDirectory() as place:
        (study := Path(place) / "study.yaml").write_text(text)
        for number in range(asked.rounds + 1):
            for shared in asked.at_once:
                took, values[shared, number] = run(study, shared, number, asked.device)
                seconds[shared].append(took)
    for shared, (first, *others) in seconds.items():
        print(f"{shared} at once: {first:.1f} s cold, {statistics.median(others):.1f} s warm")
    different = [f"{shared} at once, run {number}" for (shared, number), each in values.items()
                 if each != values[asked.at_once[0], 0]]  # fmt: skip
    print(f"other values than the first run: {', '.join(different) or 'none'}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
