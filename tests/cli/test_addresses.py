"""All commands accept the same addresses, and print and store the same for a study on a disk and in a bucket."""

import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Done

import taetpu as package
from taetpu.store.addresses import find_study
from taetpu.store.backend import open_store

CLAIMS = "claims: [low-lr is worse, low-lr is better]\n"


COMMANDS = {
    "report": lambda word: ("report", word, "--verify"),
    "status": lambda word: ("status", word),
    "plot": lambda word: ("plot", word, "--metric", "val/loss", "-o", "loss.json"),
    "check": lambda word: ("check", "claims.yaml"),
    "diff": lambda word: ("lens", "diff", word, word),
    "export": lambda word: ("model", "export", word, "-o", "exported", "--family", "no-such"),
}
ADDRESSES = (
    "small",
    "small/baseline",
    "small/baseline/0",
    "ID",
    "latest",
    "runs/small",
    "runs/small/baseline/0",
    "FOLDER",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_accept_every_form_of_address(
    taetpu: Callable[..., Done], here: Path, trained: tuple[Path, Done], command: str
):
    shutil.copytree(trained[0], here / "runs")
    (run,) = (here / "runs/small/runs/baseline").glob("0-*")
    for form in ADDRESSES:
        address = form.replace("ID", run.name[2:]).replace("FOLDER", str(run))
        (here / "claims.yaml").write_text(f"study: {address}\nclaims: [low-lr is better]\n")
        done = taetpu(*COMMANDS[command](address))
        one_run = command in ("diff", "export")
        if one_run and form in ("small", "small/baseline", "runs/small"):
            assert (done.code, "matches" in done.err) == (2, True), (form, done.err)
            continue
        assert "no study" not in done.err, (form, done.err)
        assert "matches" not in done.err, (form, done.err)
        assert ("latest: small" in done.err) == (form == "latest"), (form, done.err)


def test_status_and_plot_show_only_the_arm_of_an_address(
    taetpu: Callable[..., Done], here: Path, trained: tuple[Path, Done]
):
    shutil.copytree(trained[0], here / "runs")
    rows = taetpu("status", "small/low-lr/1", "--json").json()["small"]
    assert [(row["arm"], row["runs"]) for row in rows] == [("low-lr", "1/1")]
    taetpu("plot", "small/low-lr", "small/baseline/1", "--metric", "val/loss", "--by", "run", "-o", "loss.json")
    text = (here / "loss.json").read_text()
    assert [f"small/{run}" in text for run in ("low-lr/0", "low-lr/1", "baseline/0", "baseline/1")] == [
        True, True, False, True,
    ]  # fmt: skip
    assert len(package.read_metrics("small/low-lr/1")["seed"].unique()) == 1


@pytest.fixture
def places(trained: tuple[Path, Done], here: Path, gs_root: str) -> dict[str, str]:
    """Two roots with the trained study: one on a disk, one in a bucket."""
    local, bucket = open_store(here / "root"), open_store(gs_root)
    source = open_store(trained[0])
    for key in source.list("small"):
        for store in (local, bucket):
            if key != "small/lock":  # a file that stays on a disk, and says who had the study last
                store.write(key, source.read(key))
    return {"disk": str(here / "root"), "bucket": gs_root}


def masked(text: str, root: str) -> str:
    """Mask addresses, dates, durations and counters of drawings."""
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?\+00:00)?", "WHEN", text.replace(root, "ROOT"))
    return re.sub(r"\d+(\.\d+)? s\b", "TIME", re.sub(r" {2,}|─+|clip\d+", " ", text))


Compare = Callable[..., Done]


@pytest.fixture
def both(taetpu: Callable[..., Done], here: Path, places: dict[str, str]) -> Compare:
    """`both(*words, code=0)`: run a command for either root, named ROOT, and return its output, which must be equal."""

    def call(*words: str, code: int = 0) -> Done:
        told: dict[str, Done] = {}
        for place, root in places.items():
            (here / "claims.yaml").write_text(f"study: {root}/small\n{CLAIMS}")
            done = taetpu(*(word.replace("ROOT", root).replace("PLACE", place) for word in words))
            told[place] = Done(done.code, masked(done.out, root).replace(place, "PLACE"), masked(done.err, root))
        assert told["bucket"] == told["disk"]
        assert told["disk"].code == code, told["disk"].err
        return told["bucket"]

    return call


@pytest.mark.slow
def test_read_only_commands_print_the_same_for_disk_and_bucket(both: Compare, here: Path):
    assert both("list", "--root", "ROOT").out.split()[-5:] == ["small", "2", "2", "4/4", "WHEN"]
    assert json.loads(both("list", "--root", "ROOT", "--json").out)[0]["runs"] == "4/4"
    assert "4/4" in both("list", "--root", "ROOT/small").out
    for place in ("ROOT", "ROOT/small"):
        assert both("status", place).out.startswith("small ")
        assert json.loads(both("status", place, "--json").out)["small"][0]["runs"] == "2/2"
        assert "4/4" in both("status", place, "--watch").out
    assert "raw metrics of 4 runs" in both("report", "ROOT/small", "--verify").out
    assert json.loads(both("report", "ROOT", "--verify", "--json").out) == {"study": "small", "problems": []}
    assert "of 2 claims" in both("check", "claims.yaml", code=3).err
    assert len(json.loads(both("check", "claims.yaml", "--json", code=3).out)) == 2
    both("plot", "ROOT/small", "--metric", "val/loss", "-o", "PLACE.svg")
    both("plot", "ROOT", "--metric", "gradient-norm/all", "--x", "tokens", "--by", "run", "-o", "PLACE.json")
    for kind in ("svg", "json"):
        there, own = ((here / f"{place}.{kind}").read_text() for place in ("bucket", "disk"))
        assert masked(there, "gs://") == masked(own, "gs://")


@pytest.mark.slow
def test_missing_studies_give_the_same_error_on_disk_and_in_a_bucket(both: Compare):
    for words in (("status", "ROOT/none"), ("report", "ROOT/none"), ("plot", "ROOT/none", "--metric", "val/loss")):
        assert both(*words, code=2).err.startswith("error: ")


@pytest.mark.slow
def test_plan_and_run_of_a_finished_study_print_the_same(both: Compare):
    assert "small" in both("plan", "s.yaml", "--root", "ROOT").out
    assert "low-lr" in both("run", "s.yaml", "--root", "ROOT").out


@pytest.mark.slow
def test_runs_are_reused_from_a_bucket(both: Compare, places: dict[str, str]):
    assert "low-lr" in both("run", "s.yaml", "--root", "PLACE", "--reuse", "ROOT", "--audit", "0").out
    for place, root in places.items():
        runs = find_study(place).runs()
        assert {run.origin() for run in runs} == {run.where for run in find_study(root).runs()}


@pytest.mark.slow
def test_report_has_the_same_files_on_disk_and_in_a_bucket(both: Compare, places: dict[str, str]):
    for words in (("report", "ROOT/small"), ("report", "ROOT", "--figures", "svg"), ("report", "ROOT/small", "--json")):
        assert both(*words).out
    disk, bucket = (open_store(root) for root in places.values())
    assert bucket.list("small") == disk.list("small")
    for key in bucket.list("small"):
        there, here = (masked(store.read(key).decode("latin-1"), root) for store, root in
                       ((bucket, places["bucket"]), (disk, places["disk"])))  # fmt: skip
        assert there == here, key


@pytest.mark.slow
def test_live_page_and_python_read_the_same_from_disk_and_bucket(places: dict[str, str]):
    pytest.importorskip("uvicorn")
    from tests.ui.served import TOKEN, serving

    from taetpu.ui.server import COOKIE

    def read(port: int, path: str) -> str:
        cookie = {"Cookie": f"{COOKIE}-{port}={TOKEN}"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=cookie)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.read().decode()

    told: list[list[str]] = []
    for root in places.values():
        run = find_study(root).runs()[0]
        name = run.key.rpartition("/")[2]
        with serving(root) as port:
            paths = ("studies", "runs", "study/small", f"run/small/{run.arm}/{name}")
            told_by = [masked(read(port, f"/data/{path}"), root) for path in paths]
            pages = [re.sub(r'"id":"[0-9a-f]{8}-', "", page) for page in told_by]  # of the server that told it
        saved = package.open_run(run.where)
        told.append([*pages, package.read_metrics(f"{root}/small").to_csv(), repr(saved.config)])
    for disk, bucket in zip(*told, strict=True):
        assert disk == bucket
