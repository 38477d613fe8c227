"""The start of the command: speed, help, and usage errors."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import commands

import taetpu
from taetpu.cli.main import COMMANDS
from taetpu.core.jax_setup import cpu_cores

GROUPS = {name: group for name, group in commands().items() if hasattr(group, "commands")}
WITHIN = [f"{name} {one}" for name, group in GROUPS.items() for one in group.commands]
HEAVY = ("jax", "numpy", "pydantic", "pandas", "rich", "ruamel")


@pytest.mark.parametrize("start", ["import taetpu", "import taetpu.cli.main", "HELP"])
def test_start_imports_no_heavy_modules(start):
    show_help = (
        "import taetpu.cli.main as m, sys; sys.argv = ['taetpu', '--help']\ntry: m.main()\nexcept SystemExit: pass"
    )
    code = show_help if start == "HELP" else start
    script = f"{code}\nimport sys; sys.stderr.write(' '.join(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


LIGHT = ("", "--help", "chips", "list", "status", "gallery", "catalog corpus")
NOT_LIGHT = ("scipy.special", "scipy.stats", "scipy.optimize", "altair", "pandas", "matplotlib", "torch", "jax")


def test_light_commands_import_no_heavy_modules(here):
    """In the order of LIGHT, in one process."""
    script = f"""
import contextlib, io, sys
from taetpu.cli.main import main
for words in {LIGHT}:
    sys.argv = ["taetpu", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try: main()
        except SystemExit: pass
    heavy = [name for name in {NOT_LIGHT} if name in sys.modules]
    assert not heavy, (words, heavy)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=here)


@pytest.mark.parametrize("module", ["taetpu.study.run", "taetpu.study.preview"])
def test_studies_start_without_what_they_need_later(module):
    """These modules take a second to import. Analysis and report import them while cores are idle."""
    unneeded = set(NOT_LIGHT) - {"jax"}
    script = f"import {module}, sys; assert not {unneeded} & set(sys.modules), {unneeded} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_module_imports_a_part_of_scipy():
    """`import scipy` imports a part at its first use. `scipy.stats` takes .8 CPU seconds, `scipy.special` .2."""
    eager = re.compile(r"^(from scipy\b|import scipy\.).*", re.MULTILINE)
    texts = {file.name: file.read_text() for file in Path(taetpu.__file__).parent.rglob("*.py")}
    assert {name: eager.findall(text) for name, text in texts.items() if eager.search(text)} == {}


@pytest.mark.alone
@pytest.mark.parametrize("args", [("-c", "import taetpu"), ("-m", "taetpu", "--help")])
def test_start_takes_less_than_a_third_of_a_second(args):
    def seconds():
        began = time.monotonic()
        subprocess.run([sys.executable, *args], capture_output=True, check=True)
        return time.monotonic() - began

    assert min(seconds() for _ in range(5)) < 0.3


def test_help_lists_every_command(taetpu):
    code, out, err = taetpu("--help")
    assert (code, err) == (0, "")
    listed = re.split(r"^  (?=\S)", out.partition("Commands:\n")[2], flags=re.MULTILINE)[1:]  # summaries may be wrapped
    summaries = {name: " ".join(summary) for name, *summary in map(str.split, listed)}
    assert sorted(summaries) == sorted(COMMANDS)
    assert summaries == {name: command.get_short_help_str(100) for name, command in commands().items()}
    assert taetpu().out == out  # no command at all shows the same


@pytest.mark.parametrize("name", [*COMMANDS, *WITHIN])
def test_each_command_has_help_with_an_example(taetpu, name):
    code, out, err = taetpu(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert f"\n  Example: taetpu {name}" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.partition("Commands:\n")[2]
    assert "[[" not in out


def test_the_version(taetpu):
    from importlib.metadata import version

    assert taetpu("--version") == (0, f"taetpu {version('taetpu')}\n", "")


COMPLETED = [
    ("taetpu jud", ["judge"]),
    ("taetpu lens kno", ["knockout"]),
    ("taetpu run s.yaml --until", ["--until-resolved"]),
    ("taetpu new x --template fa", ["factorial"]),
    ("taetpu tpu s", ["status", "stop", "ssh", "sync"]),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_the_shell_completes_commands_options_and_values(taetpu, monkeypatch, typed, offered):
    monkeypatch.setenv("_TAETPU_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    code, out, err = taetpu()
    assert (code, err) == (0, "")
    assert set(out.split()) == set(offered)


MISUSED = [
    (("staus",), "no such command 'staus'. Did you mean 'status', 'costs'?", "taetpu --help"),
    (("lens",), "missing command", "taetpu lens --help"),
    (("run",), "missing argument 'STUDY'", "taetpu run --help"),
    (("plan", "a.yaml", "b.yaml"), "got unexpected extra", "taetpu plan --help"),
    (("plan", "s.yaml", "--sett", "a=1"), "no such option: --sett", "taetpu plan --help"),
    (("plan", "s.yaml", "--set"), "option '--set' requires an argument", "--help"),
    (("--root", "x"), "no such option: --root", "taetpu --help"),
]


@pytest.mark.parametrize(("args", "problem", "remedy"), MISUSED)
def test_usage_error_has_the_form_of_user_errors(taetpu, args, problem, remedy):
    code, out, err = taetpu(*args)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {problem}")
    assert second.startswith("  remedy: ")
    assert remedy in second


@pytest.mark.slow
def test_closed_pipe_gives_no_traceback(here):
    """`taetpu catalog | head -1`"""
    pipe = f"{sys.executable} -m taetpu catalog task | head -1"
    done = subprocess.run(pipe, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "task\n"
    assert done.stderr == ""


NUMBERS = [
    ("ui", ".", "--port"),
    ("plan", "s.yaml", "--effect"),
    ("plan", "s.yaml", "--noise"),
    ("plan", "s.yaml", "--pack"),
    ("run", "s.yaml", "--profile"),
    ("tpu", "up", "--max-usd"),
]


@pytest.mark.parametrize("option", NUMBERS, ids=" ".join)
@pytest.mark.parametrize("text", ["0_1", "inf"])
def test_numeric_options_are_strict(taetpu, option, text):
    code, out, err = taetpu(*option, text)
    assert (code, out) == (2, "")
    assert repr(text) in err
    assert "remedy:" in err


AT_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            print(os.environ.get("XLA_FLAGS"), os.environ.get("JAX_COMPILATION_CACHE_DIR"))
            os._exit(0)
sys.meta_path.insert(0, Finder())
from taetpu.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["run", "plan", "demo"])
def test_jax_is_imported_with_a_device_for_each_core_and_a_cache(command, here, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "programs")
    args = [command] if command == "demo" else [command, "s.yaml"]
    done = subprocess.run([sys.executable, "-c", AT_IMPORT, *args], capture_output=True, text=True, check=True)
    assert done.stdout == f"--xla_force_host_platform_device_count={cpu_cores()} programs\n"
