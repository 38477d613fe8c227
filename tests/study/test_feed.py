"""A study has the same runs with each feed, whatever interrupts it, and several processes read their own windows."""

import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.study.test_hosts import _kill_processes, end, processes, shown, start  # noqa: F401 (fixture)

from taetpu.core.config_parsing import build_component
from taetpu.data.text import TextSource
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import stored_plans

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ate"]
STUDY = """\
study: fed
base:
  task: {kind: text, source: words.txt, seq_len: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train:
    steps: 80
    batch_size: 4
    eval_every: 40
    log_every: 4
    sample: none
    metrics: {gradient-norm: {every: 7}}
    compute: {feed: resident}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-4}
"""
HOST = STUDY.replace("resident", "host")
SETS = ("--set", "train.steps=72", "--set", "train.eval_every=72")  # two tables; collectives are slow on a CPU
# A task that notes the windows that each process reads.
NOTED = """
import jax
import numpy as np
from pathlib import Path
from taetpu.core.registry import register
from taetpu.data.text import TextTask

@register("task", "noted")
class NotedTask(TextTask):
    def prepare(self, folder):
        source = super().prepare(folder)
        gather = source.gather

        def noting(rows):
            if len(rows) > 1:
                with open(folder / f"read-{jax.process_index()}.txt", "a") as file:
                    file.write(" ".join(map(str, rows.tolist())) + "\\n")
            return gather(rows)

        source.gather = noting
        return source
"""


@pytest.fixture(autouse=True)
def words(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 500)))


def trained(folder: StudyFolder) -> dict[str, bytes]:
    """Return the files of the runs that do not depend on the feed, or on when the runs were trained."""
    top = Path(folder.where)
    kept = [p for name in ("metrics", "model") for p in top.glob(f"runs/*/*/{name}/*")]
    return {str(p.relative_to(top)): p.read_bytes() for p in [*kept, *top.glob("runs/*/*/evaluation.json")]}


@pytest.mark.slow
def test_interrupted_study_with_the_feed_of_the_host_has_the_same_runs(study, interrupting, tmp_path, monkeypatch):
    outcome, resident = study(STUDY, root="resident")
    monkeypatch.setattr(TextSource, "arrays", property(lambda source: pytest.fail("all windows were read")))
    with pytest.raises(KeyboardInterrupt):
        study(HOST, root="host", callback=interrupting("on_steps", 50))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]
    (plan,) = stored_plans(StudyFolder(open_store(tmp_path / "host"), "fed"))
    assert (plan.compute.feed, plan.facts["feed"]) == ("host", "host")
    other, host = study(HOST, root="host")
    assert trained(host) == trained(resident)
    assert len(trained(host)) > 12
    assert [{**pack, "feed": "host"} for pack in outcome.results["packs"]] == other.results["packs"]


@pytest.mark.slow
def test_killed_runs_resume_alone_with_the_same_bits(tmp_path):
    """The process is killed while the thread reads ahead, and another one resumes its run from a checkpoint."""
    text = HOST.replace("steps: 80", "steps: 1000").replace("eval_every: 40", "eval_every: 250\n    checkpoint: 250")
    (tmp_path / "study.yaml").write_text(text)
    code, said = end(start(tmp_path, "resident", 1, "--pack", "off", "--set", "train.compute.feed=resident"))
    assert code == 0, said
    process = start(tmp_path, "host", 1, "--pack", "off")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("host/fed/packs/*/250/complete")):
        assert process.poll() is None, end(process)[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    end(process)
    assert not (tmp_path / "host" / "fed" / "results.json").exists()
    code, said = end(start(tmp_path, "host", 1, "--pack", "off"))
    assert code == 0, said
    assert "from step" in said
    host, resident = (StudyFolder(open_store(tmp_path / root), "fed") for root in ("host", "resident"))
    assert trained(host) == trained(resident)


@pytest.mark.nightly
def test_each_process_reads_the_windows_of_its_own_runs(tmp_path):
    """Two processes have two seeds each. Every step is read once, and the runs are those of one process."""
    text = HOST.replace("seeds: 2\narms:\n  low-lr: {train.optimizer.lr: 1e-4}", "seeds: 4\narms: {}")
    (tmp_path / "noted.py").write_text(NOTED)
    (tmp_path / "study.yaml").write_text("plugins: [noted.py]\n" + text.replace("kind: text", "kind: noted"))
    code, said = end(start(tmp_path, "one", 4, "--set", "train.compute.feed=resident", *SETS))
    assert code == 0, said
    assert not list(tmp_path.glob("read-*"))
    ended = [end(process) for process in processes([tmp_path] * 2, ["two"] * 2, 2, *SETS)]
    assert [code for code, _ in ended] == [0, 0], shown(ended)
    one, two = (StudyFolder(open_store(tmp_path / root), "fed") for root in ("one", "two"))
    assert trained(two) == trained(one)
    source = build_component("task", {"kind": "text", "source": "words.txt", "seq_len": 8}).prepare(tmp_path)
    for i in range(2):
        read = sorted(int(row) for row in (tmp_path / f"read-{i}.txt").read_text().split())
        assert read == sorted(np.concatenate([source.rows(seed, 0, 72, 4) for seed in (2 * i, 2 * i + 1)], None))
