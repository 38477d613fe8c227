"""Random study files, `--set` values and plug-ins are accepted or raise a `UserError` with its place.

Valid studies are mutated in their structure: values of other types, extreme numbers, nesting, aliases, unknown names,
names that are no file's, empty containers. Some go through the whole of `taetpu plan`.
"""

# ruff: noqa: E501 (tables of values)

import sys
import time
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from taetpu.cli.main import main
from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study

SLOWEST, TRACED = 10, 30  # seconds of this thread: a study that is loaded; a plan, which traces each of its arms
CASES, MANY = 25, 10_000

PLUGIN = """\
from taetpu.plugin import Component, register
LIMIT = 2
@register("after", "mine")
class Mine(Component):
    share: float = 0.5
    def init(self, dims, *, key):
        return lambda x, ctx: x * self.share
"""
STUDY: dict[str, Any] = {
    "study": "s",
    "base": {
        "task": {"kind": "copy", "seq_len": 8, "symbols": 4, "eval_size": 8, "min_length": 2, "max_length": 3},
        "model": {
            "dim": 8, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2, "scores": {"kind": "softcap"}},
            "position": "rope", "norm": {"kind": "rms", "eps": 1e-6}, "ffn": {"kind": "swiglu", "mult": 2.0},
            "layers": {-1: {"ffn": "none"}},
        },
        "train": {
            "steps": 6, "batch_size": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}, "clip": 1.0, "sample": "none",
            "schedule": {"kind": "cosine", "warmup": 2}, "hooks": {},
            "metrics": ["gradient-norm"], "compute": {"remat": "auto", "mesh": {"data": 1}},
        },
    },
    "seeds": [0, 3],
    "plugins": ["mine.py"],
    "arms": {"x": {"model.position": "none"}, "y": {"model.mixer.num_heads": [1, 4]}, "z": {"model.layers.0.drop": ["ffn"]}},
    "grid": {"train.optimizer.lr": [1e-3, 1e-2], "model.norm": ["rms", "layer"]},
    "measure": {"primary": "val/loss", "alpha": 0.05, "looks": [2, 4]},
    "match": ["params"],
    "trackers": ["tensorboard"],
}  # fmt: skip
PARTS: dict[str, Any] = {
    "leave_one_out": {"rope": {"model.position": "none"}, "norm": {"model.norm": "none"}},
    "add_one_in": {"bias": {"model.bias": True}},
    "factorial": {"model.norm": ["rms", "layer"], "model.position": ["rope", "none"], "fraction": 1},
    "ladder": {"model.dim": [8, 16]},
    "tune": {"train.optimizer.lr": [1e-3, 3e-3], "seeds": [100]},
}
TEXT = {"kind": "text", "source": "text.txt", "seq_len": 8, "val": 0.2, "tokenizer": {"kind": "bpe", "vocab_size": 300}}

NAMES = ["", " ", "..", ".", "a/b", "../../x", "/etc/passwd", "\0", "a\nb", "é☃", "\ud7ff", "x" * 300, "x" * 100_000, "none",
         "null", "kind", "all", "baseline", "BASELINE", "model", "model.", ".model", "model..dim", "model.layers", "a.b.c", "<<",
         "model.layers.0", "model.layers.99.ffn", "model.layers.:.ffn", "model.layers.::0.ffn", "model.layers.-1.mixer.scores",
         "train.metrics", "train.hooks.x.y", "task.kind", "val/loss", "test/accuracy", "CON", "-x", "=", "~", "%s", "{}"]  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 7, 10**6, 2**31, 2**63, 10**27, 10**400, -(10**27), 0.0, -0.0, 1e300, -1e300, 1e-300, 0.5]),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), True, False, None]),
    st.integers(), st.floats(), st.sampled_from(NAMES), st.text(max_size=20).filter(lambda s: "\ud800" not in s),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
RAW = st.one_of(
    st.sampled_from(
        ["&a [*a]", "&a {x: *a}", "*nowhere", "[" * 200, "[" * 200 + "]" * 200, "{a: " * 100 + "1" + "}" * 100, "1e400", ".nan",
         "!!binary abc=", "!!set {a, b}", "2020-13-45", "2020-12-25", "!!python/object:os.system x", "{[1]: 2}", "{? {a: 1}}", "0x1F",
         "{a: &a [1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,"
         "*c,*c], e: [*d,*d,*d,*d,*d,*d,*d,*d,*d]}", "9" * 27, "9" * 5000, "{<<: 3}", "\t", "'", '"', "- a", ": ", "%YAML 1.1\n---\n", "[1, 2"]
    ),
    st.text(max_size=30),
)  # fmt: skip
LINES = ["raise ValueError('x')", "LIMIT = 1 / 0", "import no_such_module", "def f(:", "LIMIT = [", "register('after', 'other')(3)",
         "register('nowhere', 'other')", "class Other(Component): x: int = 'no'", "register('after', 'mine')(Component)",
         "\ufeff", "é = 1", "assert False", "import taetpu.nn.ffn.dense as f; f.ACTIVATIONS", "del LIMIT", "class Mine: pass", "\0"]  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Draw a valid study with up to four places replaced, removed, renamed, repeated or wrapped."""
    data = deepcopy(STUDY)
    for name in draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=1)):
        data[name] = deepcopy(PARTS[name])
        data["arms"] = {"y": data["arms"]["y"]}
    for name in draw(st.sets(st.sampled_from(["grid", "plugins", "match", "trackers", "measure", "arms"]), max_size=5)):
        del data[name]
    if draw(st.integers(0, 4)):  # loading a plug-in takes longer than all else
        data.pop("plugins", None)
    if draw(st.booleans()):
        data["base"]["task"] = deepcopy(TEXT)
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        *above, last = draw(st.sampled_from(places(data) or [("study",)]))
        node: Any = data
        for part in above:
            node = node[part]
        if not isinstance(node, dict | list) or (isinstance(node, dict) and last not in node):
            continue
        what = draw(st.sampled_from(["value", "value", "value", "remove", "rename", "repeat", "wrap", "swap", "many"]))
        if what == "remove":
            del node[last]
        elif what == "rename" and isinstance(node, dict):
            node[draw(st.sampled_from(NAMES) | st.integers(-5, 5))] = node.pop(last)
        elif what == "repeat" and isinstance(node, list):
            node.append(node[last])
        elif what == "wrap":
            node[last] = draw(st.sampled_from([[node[last]], {"kind": node[last]}, {"a": node[last]}, [], {}]))
        elif what == "swap":
            other = draw(st.sampled_from(places(STUDY)))
            found: Any = STUDY
            for part in other:
                found = found[part]
            node[last] = deepcopy(found)
        elif what == "many":
            node[last] = draw(
                st.sampled_from([list(range(1, 2000)), [[[[1]]]], ["rms"] * 300, {f"k{i}": i for i in range(300)}])
            )
        else:
            node[last] = draw(VALUES)
    return data


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a mutated study file, sometimes with inserted raw text."""
    out = StringIO()
    YAML(typ="safe", pure=True).dump(draw(mutated()), out)
    text = out.getvalue()
    if draw(st.integers(0, 7)) == 0:
        lines = text.splitlines()
        at, raw = draw(st.integers(0, len(lines) - 1)), draw(RAW)
        key, colon, _ = lines[at].partition(":")
        how = draw(st.sampled_from(["value", "line", "twice", "cut"]))
        lines[at : at + 1] = {
            "value": [f"{key}{colon} {raw}"],
            "line": [raw, lines[at]],
            "twice": [lines[at]] * 2,
            "cut": [],
        }[how]
        text = "\n".join(lines)
    return text


PATHS = [".".join(map(str, place[1:])) for place in places(STUDY) if place[0] == "base" and len(place) > 1]
SET = st.builds(
    "{}={}".format,
    st.sampled_from(
        [*PATHS, *PATHS, *PATHS, *NAMES, "train.epochs", "train.hooks.x", "model.bias", "train.accumulate"]
    ),
    RAW
    | SCALARS.map(str)
    | VALUES.map(str)
    | st.sampled_from(["{kind: none}", "[1, 2]", "none", "auto", "1e300", "1", "2"]),
)
SETS = st.one_of(st.just([]), st.just([]), st.just([]), st.lists(SET | st.text(max_size=20), max_size=2))


@st.composite
def plugins(draw: st.DrawFn) -> str:
    lines = PLUGIN.splitlines()
    for _ in range(draw(st.sampled_from([0] * 9 + [1, 2]))):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(LINES)))
    return "\n".join(lines) + "\n"


def exit_code(argv: list[str]) -> Any:
    """Return the exit code of the command. Other exceptions propagate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["taetpu", *argv])
        try:
            main()
        except SystemExit as left:
            return left.code
    return 0


def refusal(file: Path, sets: list[str]) -> UserError | None:
    try:
        load_study(file, sets)  # its data is prepared where the whole of `plan` is tried
    except UserError as error:
        return error
    return None


def check(file: Path, sets: list[str], whole: bool) -> None:
    """Load a study, or run `taetpu plan` on it. Exceptions other than `UserError` propagate."""
    began, most = time.thread_time(), SLOWEST
    if whole:
        given = [part for text in sets for part in ("--set", text)]
        code = exit_code(["plan", str(file), "--root", str(file.parent / "root"), *given])
        assert code in (0, None, 2)
        most = TRACED  # with a mistake too: whether two arms compute the same is known when all are traced
    elif (error := refusal(file, sets)) is not None:
        assert error.problem
        assert all(one.file is not None or one.path for one in error.all_errors)
        assert len(str(error)) < 2000 * len(error.all_errors)
    assert time.thread_time() - began < most


def fuzzed(examples: int, shares: int) -> Any:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(text=texts(), sets=SETS, plugin=plugins())
    def run(folder: Path, text: str, sets: list[str], plugin: str) -> None:
        (folder / "s.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        (folder / "mine.py").write_text(plugin)
        # Not a drawn number: hypothesis repeats draws that were rare, and `plan` takes a hundred times as long.
        check(folder / "s.yaml", sets, whole=crc32(repr((text, sets, plugin)).encode()) % shares == 0)

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "text.txt").write_text("hello world, again and again. " * 40)
    return folder


@pytest.mark.slow
def test_random_study_files_raise_only_user_errors(place) -> None:
    fuzzed(CASES, 150)(place)


@pytest.mark.nightly
def test_ten_thousand_random_study_files_raise_only_user_errors(place) -> None:
    fuzzed(MANY, 30)(place)
