"""Processes: what is refused before the start, what reaches the program, and how it is stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.programs.output import read_output
from taetpu.programs.process import Limits, check_command, count_memory_kills, start_process

PYTHON = [sys.executable, "-I", "-S", "-c"]
SLEEP = "print('started', flush=True); import time; time.sleep(600)"
QUICK = Limits(seconds=120, grace=0.2, linger=0.2)


class Watcher:
    """Calls a function when output arrives, and at polls."""

    def __init__(self, at_output=None, at_poll=None):
        self.at_output, self.at_poll, self.data = at_output, at_poll, b""

    def write(self, stream, data):
        self.data += data
        if self.at_output:
            self.at_output()

    def poll(self):
        if self.at_poll:
            self.at_poll()


@pytest.fixture
def start(tmp_path):
    """`start(command)` starts a program in an empty folder."""

    def start(command, **settings):
        return start_process(
            command, **{"cwd": tmp_path, "output": tmp_path / "out.log.gz", "limits": QUICK} | settings
        )

    return start


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_arguments_and_variables_reach_the_program_unchanged(start, tmp_path, monkeypatch):
    monkeypatch.setenv("REMOVED", "1")
    words = ["", "a b", "'\"$HOME`x`\\", "--x={y}", "ü\n*"]
    code = "import sys, os; print(ascii(sys.argv[1:]), os.environ['ADDED'], 'REMOVED' in os.environ, os.getcwd())"
    watcher = Watcher()
    with start([*PYTHON, code, *words], variables={"ADDED": "{x}", "REMOVED": None}) as process:
        assert process.wait(watcher).succeeded
    assert watcher.data.decode() == f"{words!a} {{x}} False {tmp_path}\n"


def test_python_prints_each_line_at_once_unless_the_user_decides(start, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for variables, value in (({}, "1"), ({"PYTHONUNBUFFERED": "x"}, "x"), ({"PYTHONUNBUFFERED": None}, "-")):
        with start(["sh", "-c", "echo ${PYTHONUNBUFFERED:--}"], variables=variables) as process:
            assert process.wait().lines == (value,)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux binds processes to CPUs")
def test_a_program_runs_on_its_cpus(start):
    cpu = max(os.sched_getaffinity(0))
    with start([*PYTHON, "import os; print(os.sched_getaffinity(0))"], cpus=[cpu]) as process:
        assert process.wait().lines == (str({cpu}),)


def test_the_program_leads_a_process_group_without_descriptors_of_this_process(start):
    code = "import os; print(os.getpid(), os.getpgid(0), os.getsid(0), sorted(os.listdir('/proc/self/fd'))[:4])"
    with start([*PYTHON, code]) as process:
        lines = process.wait().lines
    assert lines == (f"{process.pid} {process.pid} {process.pid} ['0', '1', '2', '3']",)  # 3 is the listed folder


@pytest.mark.parametrize(
    ("command", "path", "named"),
    [
        ([], (), "empty"),
        (["no-such-program"], (0,), "no-such-program"),
        (["./missing"], (0,), "./missing"),
        (["python train.py"], (0,), "[python, train.py]"),
        (["./plain"], (0,), "chmod"),
        (["./folder"], (0,), "./folder"),
        (["sh", "a\0b"], (1,), r"'a\x00b'"),
        (["./no-interpreter"], (0,), "#!/"),
    ],
)
def test_commands_that_cannot_run_are_refused(command, path, named, start, tmp_path):
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "no-interpreter").write_text("echo x")
    (tmp_path / "no-interpreter").chmod(0o755)
    with pytest.raises(UserError) as raised:
        start(command)
    assert raised.value.path == path
    assert named in str(raised.value)


def test_places_and_cpus_that_do_not_exist_are_refused(tmp_path):
    for cwd in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(UserError) as raised:
            check_command(["sh"], cwd, os.environ)
        assert raised.value.file == cwd
    with pytest.raises(UserError, match="9999"):
        start_process(["sh"], cwd=tmp_path, output=tmp_path / "o.log.gz", cpus=[0, 9999])


def test_another_thread_stops_a_program(start):
    with start([*PYTHON, SLEEP]) as process:
        watcher = Watcher(lambda: threading.Thread(target=process.stop).start())
        ending = process.wait(watcher)
    assert (ending.cause, ending.signal, ending.lines) == ("stopped", signal.SIGTERM, ("started",))
    assert not ending.succeeded
    assert process.wait() is ending
    process.stop()


def test_a_second_stop_shortens_the_grace_period(start):
    code = "import os, signal; signal.signal(15, lambda *_: os.write(1, b'not yet'))\n" + SLEEP + "\ntime.sleep(600)"
    with start([*PYTHON, code], limits=Limits(grace=600)) as process:
        watcher = Watcher(lambda: process.stop(grace=0) if b"not yet" in watcher.data else process.stop())
        ending = process.wait(watcher)
    assert (ending.cause, ending.signal) == ("stopped", signal.SIGKILL)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_stops_the_program(error, start):
    def fail():
        raise error

    with pytest.raises(error), start([*PYTHON, SLEEP]) as process:
        process.wait(Watcher(fail))
    assert not is_alive(process.pid)
    assert process.wait().cause == "stopped"


def test_a_program_that_is_not_awaited_is_stopped(start):
    with start([*PYTHON, SLEEP]) as process:
        assert is_alive(process.pid)
    assert not is_alive(process.pid)


def test_listeners_are_polled_while_the_program_is_silent_and_after_its_end(start):
    polls = []
    with start([*PYTHON, "import time; time.sleep(1.5)"]) as process:
        process.wait(Watcher(at_poll=lambda: polls.append(is_alive(process.pid))))
    assert polls[0]
    assert not polls[-1]
    assert len(polls) >= 3


DRIVER = """
import sys
from pathlib import Path
from taetpu.programs.process import Limits, start_process
code = '''
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0: os._exit(0)
    signal.signal(15, signal.SIG_IGN)
os.write(1, b'%d\\\\n' % os.getpid())  # at once: two processes write
time.sleep(600)
'''
class Printer:
    def write(self, stream, data): print(data.decode(), end="", flush=True)
    def poll(self): pass
limits = Limits(grace=0.2)
with start_process([sys.executable, "-c", code], cwd=Path.cwd(), output=Path("out.log.gz"), limits=limits) as process:
    print(process._supervisor.pid, flush=True)
    process.wait(Printer())
"""


@pytest.fixture
def driver(tmp_path):
    """A driver that runs a program with a daemon, the number of its supervisor, and those of program and daemon."""
    with subprocess.Popen([sys.executable, "-c", DRIVER], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        numbers = [int(process.stdout.readline()) for _ in range(3)]
        assert all(map(is_alive, numbers))
        yield process, numbers
        process.kill()


def test_the_death_of_the_driver_stops_all_processes_of_its_program(driver, tmp_path):
    process, numbers = driver
    process.kill()
    wait_until(lambda: not any(map(is_alive, numbers)))


def test_the_death_of_the_supervisor_kills_the_program(driver):
    process, (supervisor, *numbers) = driver
    os.kill(supervisor, signal.SIGKILL)
    assert process.wait(60) == 0
    leader = next(number for number in numbers if number != supervisor)
    wait_until(lambda: not is_alive(leader) or leader not in numbers)
    for number in numbers:  # the daemon is no longer anybody's: nothing else is promised
        if is_alive(number):
            os.kill(number, signal.SIGKILL)


def test_output_of_a_killed_driver_can_be_read(driver, tmp_path):
    process, numbers = driver
    wait_until(lambda: read_output(tmp_path / "out.log.gz").count(b"\n") == 2)
    process.kill()
    process.wait()
    assert sorted(map(int, read_output(tmp_path / "out.log.gz").split())) == sorted(numbers[1:])


def test_programs_run_side_by_side_in_threads(start, tmp_path):
    endings = {}

    def run(number: int) -> None:
        code = f"print({number}); raise SystemExit({number})"
        with start([*PYTHON, code], output=tmp_path / f"{number}.log.gz") as process:
            endings[number] = process.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: (ending.code, ending.lines) for number, ending in endings.items()} == {
        number: (number, (str(number),)) for number in range(8)
    }


def test_no_descriptor_stays_open(start, tmp_path):
    (tmp_path / "no-interpreter").write_text("echo x")
    (tmp_path / "no-interpreter").chmod(0o755)
    with start(["true"]) as process:
        process.wait()
    before = len(os.listdir("/proc/self/fd"))
    for command in (["true"], ["./missing"], ["./no-interpreter"]):
        for _ in range(3):
            try:
                with start(command) as process:
                    process.wait()
            except UserError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_time_and_memory_are_measured(start):
    code = "import time\nx = bytearray(100 * 2**20)\nwhile time.process_time() < 0.3: pass"
    with start([*PYTHON, code]) as process:
        ending = process.wait()
    assert 100 * 2**20 < ending.peak_memory < 300 * 2**20
    assert 0.3 <= ending.cpu_seconds <= ending.seconds + 0.1


def test_kills_for_memory_are_counted_where_the_kernel_tells():
    assert count_memory_kills() >= 0


@pytest.mark.slow
def test_a_gigabyte_of_output_fills_neither_memory_nor_disk(tmp_path):
    code = """
import os
block = b"step 1: loss 2.5\\n" + (b"x" * 99 + b"\\n") * 9999 + b"x" * 82 + b"\\n"
for _ in range(1000): os.write(1, block)
"""
    driver = f"""
import resource, sys
from pathlib import Path
from taetpu.programs.metrics import MetricReader
from taetpu.programs.metric_sources import parse_sources
from taetpu.programs.process import start_process
reader = MetricReader(parse_sources({{"stdout": r"step (?P<step>\\d+): loss (?P<loss>[\\d.]+)"}}), Path.cwd())
with start_process([sys.executable, "-c", {code!r}], cwd=Path.cwd(), output=Path("out.log.gz")) as process:
    ending = process.wait(reader)
print(ending.output_bytes, reader.changes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", driver], cwd=tmp_path, capture_output=True, text=True, check=True)
    size, reports, memory = map(int, done.stdout.split())
    assert size == 10**9
    assert reports == 1000
    assert memory * 1024 < 300 * 2**20
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2**24
    assert len(read_output(tmp_path / "out.log.gz")) < 2**24 + 100
