"""The bucket store: errors with the address, lost responses, few requests, and complete folders."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fake_google.fixtures import BUCKET, TAKEN
from tests.fake_google.world import Fault, Refused, World

from taetpu.core.errors import UserError
from taetpu.store import gcs_cache
from taetpu.store.backend import LocalStore, Store, open_store
from taetpu.store.digests import Damaged
from taetpu.store.errors import NotStored
from taetpu.store.gcs import FILES, THREADS, GcsStore
from taetpu.store.gcs_client import Address, BucketError, StorageUnavailable, parse_address
from taetpu.store.index import list_studies
from taetpu.store.study import StudyFolder


@pytest.fixture
def store(gs_root: str) -> GcsStore:
    opened = open_store(gs_root)
    assert isinstance(opened, GcsStore)
    return opened


@pytest.fixture
def elsewhere(store: GcsStore) -> GcsStore:
    """Return the same store as another machine sees it."""
    other = GcsStore(store.root)
    other.local_path = lambda key: Path(f"{store.local_path('here')}-elsewhere", key)  # its own disk
    return other


def test_addresses_are_parsed_and_formatted():
    assert parse_address("gs://b-1/c/d/") == parse_address(Path("gs://b-1/c/d")) == Address("b-1", "c/d")
    assert str(Address("b-1", "c")) == "gs://b-1/c"
    assert str(Address("b-1")) == "gs://b-1"
    assert Address("b-1") / "c" == Address("b-1", "c")
    assert Address("b-1", "c/d").parent == Address("b-1", "c")
    assert (Address("b-1", "c").parent, Address("b-1").parent) == (Address("b-1"), None)
    assert parse_address("runs") is parse_address("/gs/runs") is parse_address(Path("gs")) is None
    for text, problem in (("gs://", "name ''"), ("gs://B/c", "name 'B'"), ("s3://bucket", "s3://bucket")):
        with pytest.raises(UserError, match=problem):
            parse_address(text)


def test_bucket_itself_can_be_a_root(store: GcsStore):
    top = open_store(f"gs://{BUCKET}")
    top.write("s/study.yaml", b"arms: {}\nseeds: []\n")
    assert top.list("") == top.list("s") == ["s/study.yaml"]
    assert top.where("s") == f"gs://{BUCKET}/s"
    assert [entry.where for entry in list_studies(f"gs://{BUCKET}/")] == [f"gs://{BUCKET}/s"]
    assert [entry.where for entry in list_studies(f"gs://{BUCKET}/s")] == [f"gs://{BUCKET}/s"]


def test_hidden_objects_and_folder_placeholders_are_not_listed(store: GcsStore):
    for name in ("s/", "s/.hidden", "s/.folder/a", "s//b"):
        store.bucket.blob(f"root/{name}").upload_from_string(b"")
    store.write("s/a", b"")
    assert store.list("") == store.list("s") == ["s/a"]


# --- errors ----------------------------------------------------------------------------------------------------------

ASKED: list[Callable[[Store], object]] = [
    lambda store: store.write("s/a", b"x"),
    lambda store: store.read("s/a"),
    lambda store: store.exists("s/a"),
    lambda store: store.modified("a"),
    lambda store: store.list(""),
    lambda store: store.list("s"),
    lambda store: store.delete("s"),
    lambda store: store.claim("s/lock").__enter__(),
    lambda store: store.fetch_folder("s/packs/0/1"),
]


@pytest.mark.parametrize("ask", ASKED)
def test_missing_bucket_is_reported(gs_root: str, ask: Callable[[Store], object]):
    with pytest.raises(BucketError, match="bucket 'none-such' does not exist") as caught:
        ask(open_store("gs://none-such/runs"))
    assert "gs://none-such/runs" in str(caught.value)
    assert "bucket create none-such --region" in str(caught.value)


@pytest.mark.parametrize("ask", ASKED)
def test_missing_access_is_reported(gs_root: str, ask: Callable[[Store], object]):
    with pytest.raises(BucketError, match=r"storage\.objects\.") as caught:
        ask(open_store(f"gs://{TAKEN}/runs"))
    assert f"gs://{TAKEN}/runs" in str(caught.value)
    assert "--role=roles/storage.object" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [ASKED[0], ASKED[1], ASKED[5], ASKED[7]])
def test_unavailable_service_is_reported(store: GcsStore, world: World, ask: Callable[[Store], object]):
    world.faults.append(Fault("*", Refused(14, "We encountered an internal error"), times=10**6))
    with pytest.raises(StorageUnavailable, match="Cloud Storage") as caught:
        ask(store)
    assert f"gs://{BUCKET}/root" in str(caught.value)
    assert "Nothing that was" in str(caught.value)


@pytest.mark.parametrize("code", [8, 13, 14, None])
@pytest.mark.parametrize("ask", ASKED[:7])
def test_temporary_failures_are_retried(
    store: GcsStore, world: World, ask: Callable[[Store], object], code: int | None
):
    store.write("s/a", b"x")
    store.write("a", b"x")
    store.listings.clear()
    store.contents.cached.clear()
    world.faults.append(Fault("*", Refused(code, "try again") if code else None, times=2))
    ask(store)
    assert world.faults == []


def test_missing_library_is_reported_with_its_extra(gs_root: str, tmp_path: Path):
    script = "import sys; sys.modules['google.cloud'] = None; sys.argv[1:] = ['list', '--root', sys.argv[1]]\n"
    script += "from taetpu.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, gs_root], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'taetpu[gcp]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_local_root_needs_no_library(tmp_path: Path):
    script = "import sys; sys.modules['google.cloud'] = None; sys.argv[1:] = ['list', '--root', sys.argv[1]]\n"
    script += "from taetpu.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- written once, whatever becomes of the answer --------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
def test_write_whose_response_was_lost_succeeds(store: GcsStore, world: World, replace: bool):
    world.faults.append(Fault("objects.insert", None, moment="after"))
    store.write("s/a", b"mine", replace=replace)
    assert store.read("s/a") == b"mine"
    with pytest.raises(UserError, match="not be overwritten"):
        store.write("s/a", b"other")


def test_second_of_two_concurrent_writers_is_refused(store: GcsStore, elsewhere: GcsStore):
    assert not store.exists("s/a")
    elsewhere.write("s/a", b"theirs")
    store.write("s/b", b"mine")
    with pytest.raises(UserError, match="not be overwritten") as caught:
        store.write("s/a", b"mine")
    assert caught.value.file == f"gs://{BUCKET}/root/s/a"
    assert store.read("s/a") == b"theirs"


def test_result_is_deleted_before_the_other_files_of_a_run(store: GcsStore, world: World):
    for name in ("config.json", "a", "metrics/0-10.json", "result.json", "z"):
        store.write(f"s/runs/x/0-{'0' * 8}/{name}", b"{}")
    world.faults.append(Fault("objects.delete", Refused(7, "no more"), skip=1, times=10**6))
    with pytest.raises(BucketError):
        store.delete("s/runs/x")
    world.faults.clear()
    assert [key.rpartition("/")[2] for key in GcsStore(store.root).list("s")] == ["a", "config.json", "0-10.json", "z"]
    (run,) = StudyFolder(GcsStore(store.root), "s").runs()
    assert run.status() == "started"


# --- few requests ----------------------------------------------------------------------------------------------------


def test_status_of_many_runs_needs_one_listing_and_reads_only_new_objects(
    store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gcs_cache, "MAX_AGE", 600.0)  # on a busy machine, the reads take longer than a second
    study = StudyFolder(store, "s")
    for seed in range(20):
        run = study.run("a", seed, "0" * 8)
        run.start({})
        for start in range(0, 50, 10):
            run.append(start, start + 10, {"loss": ([start + 10], [1.0])})
        run.finish({})
    watching = StudyFolder(GcsStore(store.root), "s")

    def look() -> list[str]:
        world.calls.clear()
        found = [(run.status(), len(run.metrics()["loss"].step)) for run in watching.runs()]
        assert found == [("done", 5)] * 20
        return [call.name for call in world.calls]

    first = look()
    assert first.count("objects.list") == 2  # results are new to it, so it asks once more
    assert first.count("objects.get") == 100
    assert look() == []
    watching.store.listings.clear()  # pyright: ignore[reportAttributeAccessIssue]
    study.run("a", 3, "0" * 8).append(50, 60, {"loss": ([60], [1.0])})
    world.calls.clear()
    assert len(watching.run("a", 3, "0" * 8).metrics()["loss"].step) == 6
    assert [call.name for call in world.calls].count("objects.get") == 1


def test_listing_never_has_a_result_without_the_earlier_files(store: GcsStore, world: World):
    """The run ends between two pages of a listing, of which the first has its metrics and the second its result."""
    watching = GcsStore(store.root)
    run = StudyFolder(store, "s").run("a", 0, "0" * 8)
    run.start({})
    listed, pages = watching.list_keys, []

    def overtaken(name: str) -> dict:
        found = listed(name)
        if not pages:
            run.append(0, 10, {"loss": ([10], [1.0])})
            run.finish({})
            found |= {key: entry for key, entry in listed(name).items() if key.endswith("result.json")}
        pages.append(found)
        return found

    watching.listings.list_keys = overtaken
    seen = StudyFolder(watching, "s").run("a", 0, "0" * 8)
    assert (seen.status(), len(pages)) == ("done", 2)
    assert len(seen.metrics()["loss"].step) == 1


def test_objects_of_other_processes_are_seen_after_a_second(store: GcsStore, elsewhere: GcsStore):
    assert store.list("s") == []
    elsewhere.write("s/a", b"1")
    assert elsewhere.list("s") == ["s/a"]
    store.listings.known["s"] = (store.listings.known["s"][0] - 1.0, {})  # a second later
    assert store.list("s") == ["s/a"]


# --- folders ---------------------------------------------------------------------------------------------------------


def kept(store: GcsStore, step: int) -> None:
    """Store a checkpoint of two files, one of them in a folder, which contain their step."""
    pack = StudyFolder(store, "s").pack("p")
    folder = pack.part(step, 0)
    (folder / "d").mkdir(exist_ok=True)
    for name in ("state", "d/array"):
        (folder / name).write_bytes(b"%d" % step * 1000)
    pack.save_part(step, 0)
    pack.complete(step, 1, {})


def found(store: GcsStore) -> int | None:
    """Return the step from which a pack resumes. Damaged checkpoints are moved away and incomplete ones are deleted."""
    pack = StudyFolder(store, "s").pack("p")
    for step in reversed(pack.steps()):
        try:
            path = pack.fetch_part(step, 0) if pack.read_complete(step) else None
        except Damaged:
            pack.move_to_damaged(step)
            continue
        if path is not None:
            assert (path / "state").read_bytes() == (path / "d" / "array").read_bytes() == b"%d" % step * 1000
            return step
        pack.delete(step)
    return None


def test_folder_is_fetched_on_another_machine(store: GcsStore, elsewhere: GcsStore):
    kept(store, 10)
    part = "s/packs/p/10/process-0"
    assert store.list("s/packs") == ["s/packs/p/10/complete", f"{part}/d/array", f"{part}/state"]
    assert found(elsewhere) == 10


def test_two_checkpoints_are_kept(store: GcsStore):
    for step in (10, 20, 30, 40):
        kept(store, step)
    assert StudyFolder(store, "s").pack("p").steps() == [30, 40]
    StudyFolder(store, "s").delete_pack("p")
    assert store.list("s") == []
    assert not (store.folder("s/packs/p") / "40").exists()


@pytest.mark.parametrize("damage", ["missing", "other", "list", "unlisted"])
def test_training_resumes_from_the_checkpoint_before_a_damaged_one(store: GcsStore, elsewhere: GcsStore, damage: str):
    kept(store, 10)
    kept(store, 20)
    newest = "root/s/packs/p/20/process-0"
    if damage == "missing":
        store.bucket.blob(f"{newest}/d/array").delete()
    elif damage == "other":
        store.bucket.blob(f"{newest}/d/array").upload_from_string(b"30" * 1000)
    elif damage == "list":
        store.bucket.blob(f"{newest}/{FILES}").upload_from_string(b"{")
    else:
        store.bucket.blob(f"{newest}/{FILES}").delete()
    assert found(elsewhere) == 10
    assert StudyFolder(elsewhere, "s").pack("p").steps() == [10]
    aside = (
        [] if damage == "unlisted" else ["s/damaged/1/packs/p/20/process-0/state"]
    )  # without a list, its upload never ended
    assert [key for key in elsewhere.list("s/damaged") if key.endswith("state")] == aside
    shutil.rmtree(elsewhere.folder("s"))
    kept(elsewhere, 20)
    assert found(GcsStore(store.root)) == 20


def test_interrupted_download_leaves_nothing_behind(store: GcsStore, elsewhere: GcsStore, world: World):
    kept(store, 10)
    world.faults.append(Fault("objects.get", Refused(7, "not now"), skip=2))
    with pytest.raises(BucketError, match=r"cannot read .*/s/packs/p/10/process-0: not now"):
        found(elsewhere)
    assert not [path for path in elsewhere.folder("s/packs/p/10").iterdir() if path.name.startswith("process")]
    assert found(elsewhere) == 10


UPLOADS = """
import os, signal, sys
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
import google.cloud.storage, google.cloud.storage.transfer_manager

def die_before(moment):
    seen = 0
    def die(event, arguments):
        nonlocal seen
        if event == "http.client.send":
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(die)

def keep(root):
    store = open_store(root)
    study = StudyFolder(store, "s")
    for step in (10, 20, 30):
        pack = study.pack("p")
        folder = pack.part(step, 0)
        (folder / "d").mkdir()
        for name in ("state", "d/array"):
            (folder / name).write_bytes(b"%d" % step * 1000)
        pack.save_part(step, 0)
        pack.complete(step, 1, {})
        print(step, flush=True)

for moment in range(1, 200):
    child = os.fork()
    if not child:
        die_before(moment)
        keep(f"{sys.argv[1]}/{moment}")
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print("whole", moment)
"""


@pytest.mark.slow
def test_last_complete_checkpoint_is_found_after_a_kill_at_any_request(
    gs_root: str, start: Callable[..., subprocess.Popen[str]]
):
    """One process is killed before its first request, another before its second request, and so on."""
    said = start(UPLOADS, gs_root).communicate()[0]
    assert said.splitlines()[-1].startswith("whole"), said
    moments, resumed = int(said.split()[-1]), []
    for moment in range(1, moments + 1):
        store = GcsStore(Address(BUCKET, f"root/{moment}"))
        step = found(store)
        resumed.append(0 if step is None else step)
    assert resumed == sorted(resumed)
    assert set(resumed) == {0, 10, 20, 30}
    assert moments > 12


def test_local_folder_is_removed_with_its_process(gs_root: str, start: Callable[..., subprocess.Popen[str]]):
    script = "import sys; from taetpu.store.backend import open_store; s = open_store(sys.argv[1])\n"
    script += "f = s.folder('s/a'); (f / 'x').write_bytes(b'1'); s.save_folder('s/a'); print(f)"
    said = start(script, gs_root).communicate()[0].strip()
    assert said.startswith(os.environ["TAETPU_CACHE"])
    assert not Path(said).exists()
    assert open_store(gs_root).read("s/a/x") == b"1"


def test_missing_object_is_not_a_conflict(store: GcsStore):
    with pytest.raises(NotStored):
        store.read("s/a")
    with pytest.raises(UserError):
        store.write("s/../a", b"")


def test_changes_are_made_concurrently(store: GcsStore):
    """Each change waits until all changes have started, and makes further changes."""
    together = threading.Barrier(THREADS, timeout=20)

    def change(number: int) -> None:
        together.wait()
        store.run_concurrently([lambda name=name: store.write(f"s/{number}/{name}", b"1") for name in "ab"])

    store.run_concurrently([lambda number=number: change(number) for number in range(THREADS)])
    assert len(store.list("s")) == 2 * THREADS


def test_pending_changes_are_consumed_lazily(store: GcsStore):
    """The data of all changes need not fit into memory."""
    made: list[int] = []

    def changes() -> Iterator[Callable[[], None]]:
        for number in range(3 * THREADS):
            assert number - len(made) <= THREADS
            yield lambda number=number: (store.write(f"s/{number}", b""), made.append(number))[1]

    store.run_concurrently(changes())
    assert sorted(made) == list(range(3 * THREADS))


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_running_changes_end_before_an_error_is_raised(store: GcsStore, error: type[BaseException]):
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        threading.Event().wait(0.2)
        store.write("s/slow", b"")

    def changes() -> Iterator[Callable[[], None]]:
        yield slow
        begun.wait(20)
        raise error("no")

    with pytest.raises(error):
        store.run_concurrently(changes())
    assert store.list("s") == ["s/slow"], "it does not come later"


def test_error_of_a_change_is_raised(store: GcsStore, tmp_path: Path):
    def fails() -> None:
        raise UserError("this one cannot")

    for place in (store, LocalStore(tmp_path)):
        with pytest.raises(UserError, match="this one cannot"):
            place.run_concurrently([lambda place=place: place.write("s/a", b""), fails])
        assert place.list("s") == ["s/a"]
