"""`taetpu export` writes files that the schedulers' parsers accept and that train a study."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml  # YAML 1.1, as in kubectl and SkyPilot
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import TINY

from taetpu.study.scheduler_jobs import CONFIG_MAP_BYTES, Share, kueue_job

ROOT = "gs://studies/root"
SCHEMA = json.loads((Path(__file__).parent / "kubernetes.json").read_text())
KUEUE = ("kueue", "s.yaml", "--image", "us-docker.pkg.dev/p/r/i:t", "--root", ROOT)
SKYPILOT = ("skypilot", "s.yaml", "--shards", "3", "--root", ROOT, "--install", "git+https://x/y")


def check(documents: list[dict]) -> dict[str, dict]:
    """Return the documents by kind. Check each against the published schema."""
    for one in documents:
        jsonschema.validate(one, SCHEMA | {"$ref": f"#/$defs/V1{one['kind']}"})
    return {one["kind"]: one for one in documents}


def exported(taetpu, *words: object) -> str:
    """Return the file that `taetpu export` writes."""
    done = taetpu("export", *words)
    assert done.code == 0, done.err
    return Path(re.search(r"^wrote (.+)$", done.out, re.M)[1]).read_text()


def submitit(program: str, *words: object) -> str:
    """Run a program in a subprocess, since importing submitit closes all logging handlers. Return its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def shared(monkeypatch):
    """Treat the tests' folder as shared by all nodes."""
    monkeypatch.setattr("taetpu.cli.export_jobs.LOCAL", ())


def test_slurm_writes_an_array_of_all_shards(taetpu, here, shared):
    text = exported(taetpu, "slurm", "s.yaml", "--shards", 3, "--set", "train.sample={tokens: 3}")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.M))
    assert options["array"] == "0-2"
    assert options["output"] == f"{here}/small-slurm/%A_%a_0_log.out"
    assert (here / "small-slurm").is_dir()
    assert f"{here / 's.yaml'} --set 'train.sample={{tokens: 3}}' --root {here / 'runs'}" in text
    assert '--shard "$SLURM_ARRAY_TASK_ID/3"' in text


@pytest.mark.skipif(not shutil.which("sbatch"), reason="Slurm is not installed")
def test_slurm_accepts_the_script(taetpu, here, shared):
    exported(taetpu, "slurm", "s.yaml", "--shards", 3)
    tested = subprocess.run(["sbatch", "--test-only", "small.slurm.sh"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr


def test_slurm_options_match_submitit(taetpu, shared):
    """The script has the options that submitit writes for an array."""
    theirs = submitit(
        "from submitit.slurm.slurm import _make_sbatch_string as make; print(make('true', '/l', map_count=3))"
    )
    ours = exported(taetpu, "slurm", "s.yaml", "--shards", 3)

    def names(text: str) -> set[str]:
        return set(re.findall(r"^#SBATCH --([\w-]+)", text, re.M))

    assert names(theirs) - {"wckey", "time"} <= names(ours)
    log = re.compile(r"^#SBATCH --output=.*/(.*)$", re.M)
    assert log.search(theirs)[1] == log.search(ours)[1]
    assert re.search(r"--signal=\w+@(\d+)", theirs)[1] == re.search(r"--signal=\w+@(\d+)", ours)[1]


@pytest.mark.slow
def test_kueue_writes_an_indexed_job(taetpu):
    text = exported(taetpu, *KUEUE, "--shards", 3, "--tpu", "v6e-8", "--queue", "on", "--spot")
    found = check(list(yaml.safe_load_all(text)))
    spec, pod = found["Job"]["spec"], found["Job"]["spec"]["template"]["spec"]
    assert found["Job"]["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "on"}
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "2x4",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "8"}
    assert '--shard "$JOB_COMPLETION_INDEX/3"' in pod["containers"][0]["command"][2]
    assert found["ConfigMap"]["data"] == {"file-0": Path("s.yaml").read_text()}


PLUGIN = (Path(__file__).parents[2] / "examples" / "plugins" / "squared_ffn.py").read_text()


def test_pod_mounts_all_files_of_a_study_at_their_paths(taetpu, here):
    (here / "parts").mkdir()
    (here / "parts" / "mine.py").write_text(PLUGIN)
    (here / "texts" / "more").mkdir(parents=True)
    (here / "texts" / "a.txt").write_text("the cat \f sat on the mat. " * 40)
    (here / "texts" / "more" / "b.txt").write_text("the dog sat on the cat. " * 40)
    task = "task: {kind: text, source: texts, tokenizer: {kind: byte}, seq_len: 8}"
    (here / "s.yaml").write_text(re.sub(r"task: .*", task, TINY) + "plugins: [parts/mine.py]\n")
    found = check(list(yaml.safe_load_all(exported(taetpu, *KUEUE, "--tpu", "v5e-8"))))
    config, items = found["ConfigMap"], found["Job"]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"]
    paths = {item["path"]: item["key"] for item in items}
    assert set(paths) == {"s.yaml", "parts/mine.py", "texts/a.txt", "texts/more/b.txt"}
    assert config["data"][paths["parts/mine.py"]] == PLUGIN
    assert config["data"][paths["texts/a.txt"]] == (here / "texts/a.txt").read_text()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.from_regex(r"[\w .-]{1,20}", fullmatch=True, alphabet="a.-Z 9"),
)
def test_kueue_job_preserves_any_text_and_name(tmp_path_factory, text, study):
    from taetpu.core.chips import parse_slice

    folder = tmp_path_factory.mktemp("any")
    (folder / "on").write_bytes(text.encode())
    share = Share(study, ("--root", ROOT), 2)
    written = kueue_job(share, folder, ["on"], parse_slice("v5e-8"), "yes", "null", "1e3", False)
    found = check(list(yaml.safe_load_all(written)))
    config = found["ConfigMap"]
    assert config["data"]["file-0"] == text
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", found["Job"]["metadata"]["name"])


def test_different_studies_get_different_job_names():
    names = {Share(study, (), 1).name for study in ("a-b", "a_b", "A-b", "a.b", "a" * 30 + "1", "a" * 30 + "2", "-")}
    assert len(names) == 7


def test_skypilot_writes_a_managed_job_for_each_shard(taetpu, here):
    task = yaml.safe_load(exported(taetpu, *SKYPILOT, "--tpu", "v5e-8", "--spot"))
    assert task["resources"]["accelerators"] == "tpu-v5litepod-8"
    assert task["resources"]["use_spot"] is True
    assert task["file_mounts"] == {"~/study/s.yaml": str(here / "s.yaml")}
    assert "git+https://x/y" in task["setup"]
    assert f'--root {ROOT} --shard "$SKYPILOT_JOB_RANK/3"' in task["run"]


TUNED = TINY + "tune: {train.optimizer.lr: [1e-3, 3e-3], seeds: [100]}\n"


@pytest.mark.slow
def test_shards_of_a_staged_study_do_not_wait(taetpu, here, shared):
    """Slurm requeues the task, SkyPilot deletes its machine, Kubernetes replaces its pod after a delay."""
    assert "--no-wait" not in exported(taetpu, "slurm", "s.yaml", "--shards", 2)
    (here / "s.yaml").write_text(TUNED)
    assert re.search(r"^srun .* --no-wait$", exported(taetpu, "slurm", "s.yaml", "--shards", 2), re.M)
    job = check(list(yaml.safe_load_all(exported(taetpu, *KUEUE, "--shards", 2, "--tpu", "v6e-8"))))["Job"]["spec"]
    assert "--no-wait" in job["template"]["spec"]["containers"][0]["command"][2]
    actions = {code: rule["action"] for rule in job["podFailurePolicy"]["rules"]
               for code in rule.get("onExitCodes", {}).get("values", ())}  # fmt: skip
    assert actions == {2: "FailIndex", 3: "FailIndex", 75: "Ignore", 130: "Ignore"}
    task = yaml.safe_load(exported(taetpu, *SKYPILOT, "--tpu", "v6e-8"))
    assert "--no-wait" in task["run"]
    (here / "study").mkdir()
    for code, expected in ((0, 0), (75, 0), (130, 130), (3, 3)):
        path = programs(here / f"bin{code}", python=f"#!/bin/bash\nexit {code}\n")
        environment = {"PATH": path, "HOME": str(here), "SKYPILOT_JOB_RANK": "1"}
        assert subprocess.run(["bash", "-c", task["run"]], env=environment, check=False).returncode == expected


TEXTS = """\
study: texts
base:
  task: {kind: text, source: [a.txt, books, wikitext-2], val_source: 'hf://datasets/their/data', seq_len: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 6, batch_size: 4}
arms: {lr: {train.optimizer.lr: 1e-5}}
measure: {primary: val/loss}
"""


def test_exports_say_what_travels(taetpu, here, shared):
    assert "data:" not in taetpu("export", *KUEUE, "--shards", 1, "--tpu", "v6e-8").out
    (here / "books").mkdir()
    for name, size in (("a.txt", 1000), ("books/b.txt", 234), ("books/c.txt", 1)):
        (here / name).write_text("x" * size)
    (here / "s.yaml").write_text(TEXTS)
    copied = taetpu("export", *KUEUE, "--shards", 1, "--tpu", "v6e-8", "-o", "k.yaml")
    same = taetpu("export", "slurm", "s.yaml", "--shards", 2, "-o", "s.sh")
    for done in (copied, same):
        assert done.code == 0, done.err
        files, fetched = [line for line in done.out.splitlines() if line.startswith("data: ")]
        assert "1,235 bytes in 3 files" in files
        assert "hf://datasets/their/data, wikitext-2" in fetched
    assert ("copied" in copied.out.partition("hf://")[0], "copied" in same.out.partition("hf://")[0]) == (True, False)
    config = next(one for one in yaml.safe_load_all((here / "k.yaml").read_text()) if one["kind"] == "ConfigMap")
    assert sorted(map(len, config["data"].values()))[:3] == [1, 234, len(TEXTS)]


def test_cost_grows_with_the_number_of_shards(taetpu):
    few = taetpu("export", *KUEUE, "--shards", 1, "--tpu", "v6e-8")
    many = taetpu("export", *KUEUE, "--shards", 40, "--tpu", "v6e-8", "-o", "many.yaml")
    usd = [float(re.search(r"\$([\d,.]+)/h", one.out)[1].replace(",", "")) for one in (few, many)]
    assert usd[1] == pytest.approx(40 * usd[0])


LOAD = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(resources.accelerators, resources.use_spot, resources.cloud, task.run)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("tpu", ["v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8"])
def test_skypilot_loads_the_task(taetpu, tmp_path, tpu):
    """SkyPilot's requirements conflict with ours, so TAETPU_SKYPILOT_PYTHON names another Python."""
    python = os.environ.get("TAETPU_SKYPILOT_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import sky"], capture_output=True, check=False).returncode:
        pytest.skip("SkyPilot is not installed")
    exported(taetpu, *SKYPILOT, "--tpu", tpu, "--spot", "-o", "task.yaml")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    words = [python, "-c", LOAD, "task.yaml"]
    loaded = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert loaded.returncode == 0, loaded.stderr
    assert f"{{'tpu-{tpu.replace('v5e', 'v5litepod')}': 1}} True GCP" in loaded.stdout


@pytest.mark.parametrize(
    ("words", "value", "place", "remedy"),
    [
        (("slurm", "s.yaml", "--shards", "2", "--root", "/tmp/x"), "/tmp/x", "--root", "gs://"),
        (
            ("skypilot", "s.yaml", "--shards", "2", "--tpu", "v6e-8", "--install", "x"),
            "./runs",
            "--root",
            "bucket create",
        ),
        ((*SKYPILOT[:-2], "--tpu", "v6e-8"), "install", "--install", "git+https://"),
        ((*SKYPILOT, "--tpu", "v6e-16"), "4 hosts", "--tpu", "v6e-8"),
        ((*SKYPILOT, "--tpu", "tpu7x-8"), "tpu7x", "--tpu", "kueue"),
        ((*KUEUE, "--shards", "2", "--tpu", "v4-16"), "2 hosts", "--tpu", "v4-8"),
        ((*KUEUE, "--tpu", "v3-8"), "v3", "--tpu", "v5e-8"),
        ((*KUEUE, "--tpu", "v6e-9"), "v6e-9", "", "v6e-8"),
        ((*KUEUE, "--tpu", "v6e-8", "--shards", "0"), "0", "--shards", "--help"),
    ],
)
def test_unsupported_exports_are_refused(taetpu, here, words, value, place, remedy):
    before = sorted(here.iterdir())
    done = taetpu("export", *words)
    assert done.code == 2
    assert value in done.err
    assert place in done.err
    assert remedy in done.err.partition("remedy:")[2]
    assert sorted(here.iterdir()) == before


def test_files_that_kubernetes_cannot_hold_are_refused(taetpu, here):
    (here / "text.txt").write_bytes(b"x" * CONFIG_MAP_BYTES)
    task = "task: {kind: text, source: text.txt, tokenizer: {kind: byte}, seq_len: 8}"
    (here / "s.yaml").write_text(re.sub(r"task: .*", task, TINY))
    done = taetpu("export", *KUEUE, "--tpu", "v5e-8")
    assert done.code == 2
    assert str(CONFIG_MAP_BYTES) in done.err
    assert "skypilot" in done.err


def test_a_file_with_other_content_is_not_overwritten(taetpu, here, shared):
    first = exported(taetpu, "slurm", "s.yaml", "--shards", 2)
    assert taetpu("export", "slurm", "s.yaml", "--shards", 2).code == 0  # the same content
    done = taetpu("export", "slurm", "s.yaml", "--shards", 3)
    assert (done.code, Path("small.slurm.sh").read_text()) == (2, first)
    assert "small.slurm.sh" in done.err
    assert "--out" in done.err.partition("remedy: ")[2]


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
EXECUTOR = """
import os, sys
import submitit
folder, script, *tasks = sys.argv[1:]
executor = submitit.LocalExecutor(folder=folder)
executor.update_parameters(timeout_min=5)
run = [
    submitit.helpers.CommandFunction(
        ["bash", script], env={**os.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": task}
    )
    for task in tasks
]
for job in [executor.submit(one) for one in run]:
    job.result()
"""
REQUEUE = '#!/bin/bash\n[ "$1" = requeue ] && echo "$2" >>"$REQUEUED"\n'


def programs(folder: Path, **texts: str) -> str:
    """Return a PATH on which these programs come first."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (3, False), (75, True), (130, True)])
def test_slurm_requeues_interrupted_and_waiting_tasks(taetpu, here, shared, code, requeued):
    exported(taetpu, "slurm", "s.yaml", "--shards", 3)
    path = programs(here / "bin", srun=f"#!/bin/bash\nexit {code}\n", scontrol=REQUEUE)
    environment = {"PATH": path, "REQUEUED": "again", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    ended = subprocess.run(["bash", "small.slurm.sh"], env=environment, check=False)
    assert ended.returncode == (0 if requeued else code)
    assert Path("again").exists() == requeued
    assert not requeued or Path("again").read_text() == "7_2\n"


@pytest.mark.nightly
def test_submitits_local_executor_trains_a_study_in_shards(taetpu, here, shared, monkeypatch):
    """Run the script for each task with stand-ins for `srun` and `scontrol`. Requeued tasks run again.

    There are two packs: the third shard has none.
    """
    (here / "s.yaml").write_text(TINY + "seeds: 2\narms: {no-ffn: {model.ffn: none}}\n")
    exported(taetpu, "slurm", "s.yaml", "--shards", 3)
    monkeypatch.setenv("PATH", programs(here / "bin", srun=SRUN, scontrol=REQUEUE))
    monkeypatch.setenv("REQUEUED", str(here / "requeued"))
    waiting = ["0", "1", "2"]
    for _ in range(10):
        submitit(EXECUTOR, here / "submitit", here / "tiny.slurm.sh", *waiting)
        requeued = here / "requeued"
        waiting = [line.rpartition("_")[2] for line in requeued.read_text().split()] if requeued.exists() else []
        requeued.unlink(missing_ok=True)
        if not waiting:
            break
    alone = taetpu("run", "s.yaml", "--root", here / "alone")
    assert alone.code == 0, alone.err
    results = [(here / root / "tiny" / "results.json").read_bytes() for root in ("runs", "alone")]
    assert results[0] == results[1]


# --- control characters -----------------------------------------------------------------------------------------------

BREAK = "runs\ntouch hacked #"


@pytest.mark.parametrize("scheduler", ["slurm", "skypilot", "kueue"])
@pytest.mark.parametrize("place", ["root", "study file", "set", "out"])
def test_line_breaks_do_not_enter_a_script(taetpu, here, shared, scheduler, place):
    """Before, the second line of a folder's name was a line of the Slurm script, and ran."""
    words = {"slurm": ("slurm", "s.yaml", "--shards", "2", "--root", "shared"), "skypilot": SKYPILOT, "kueue": KUEUE}
    given = [*words[scheduler], *(() if scheduler == "slurm" else ("--tpu", "v5e-8"))]
    if place == "root":
        given[given.index("--root") + 1] = BREAK if scheduler == "slurm" else f"{ROOT}/{BREAK}"
    elif place == "study file":
        (here / BREAK).mkdir()
        given[1] = shutil.copy(here / "s.yaml", here / BREAK / f"{'a' if scheduler == 'slurm' else BREAK[4:]}.yaml")
    elif place == "set":
        given += ["--set", "train.sample={tokens: 3,\n top_k: 2}"]
    else:
        given += ["--out", BREAK]
    before = {path.name for path in here.iterdir()}
    done = taetpu("export", *given)
    assert done.code == 2, done.out
    assert r"\n" in done.err.splitlines()[0]
    assert "remedy: " in done.err
    assert {path.name for path in here.iterdir()} == before


def test_next_commands_are_quoted(taetpu, here, shared):
    (here / "my jobs; $(touch hacked)").mkdir()
    file = "my jobs; $(touch hacked)/a job.sh"
    done = taetpu("export", "slurm", "s.yaml", "--shards", 2, "--root", "my runs", "--out", file)
    lines = dict(line.split(": ", 1) for line in done.out.splitlines()[1:])
    assert shlex.split(lines["next"]) == ["sbatch", file]
    assert shlex.split(lines["then"]) == ["taetpu", "report", f"{here}/my runs/small"]
    (output,) = re.findall(r"--output='(.*)/%A_%a_0_log.out'", (here / file).read_text())
    assert output == str(here / Path(file).parent / "small-slurm")
