"""The feed `host` gives the same bits as the feed `resident`, from tables of the next steps."""

import threading
from copy import copy

import jax
import numpy as np
import pytest
from tests.train.eight import collectives

from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import split
from taetpu.data.base import array_shapes
from taetpu.train import choose_compute as choosing
from taetpu.train import program as program_module
from taetpu.train.choose_compute import choose_compute


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feed")]


@pytest.fixture
def both(trainer):
    """`both(configs, source, **layout)`: the same pack with each feed."""
    packs = []

    def made(configs, source, **layout):
        packs.extend(trainer(configs, source, feed=feed, **layout) for feed in ("resident", "host"))
        return packs[-2:]

    yield made
    for pack in packs:
        pack.feed.__exit__()
    assert not threads()


def assert_same_training(resident, host, *sizes) -> None:
    """The packs take the same steps, the second in its own dispatches."""
    expected, found = resident.advance(*sizes[0]), host.advance(*sizes[1])
    for name, values in expected.items():
        np.testing.assert_array_equal(values, found[name], err_msg=name)
    for a, b in zip(jax.tree.leaves(resident.state), jax.tree.leaves(host.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_pack_of_arms_and_seeds_is_bitwise_the_same(both, make, text):
    """Tables of 8 steps are read in dispatches of several sizes, over the end of an epoch, with padding."""
    arms = [make(text[0]), make(text[0], optimizer={"kind": "adamw", "lr": 0.01})]
    source = text[1]
    resident, host = both([*arms, *arms], source, width=6, seeds=[3, 3, 4, 4])
    assert source.num_windows > 12 * 4
    start = source.num_windows // 4 - 4
    resident.step = host.step = start
    for pack in (resident, host):
        pack.program.steps = start + 11  # the last table is not full
    assert_same_training(resident, host, (8, 3), (2, 5, 1, 3))
    assert host.program.advance._cache_size() == 1
    assert set(host.feed.places) == {3, 4}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "train"), [
    ({}, {"accumulate": 2}),
    ({"segments": True}, {}),
])  # fmt: skip
def test_run_is_bitwise_the_same_alone(both, make, text, tmp_path, task, train):
    config = make(text[0] | task, **train)
    source = config.task.prepare(tmp_path) if task else text[1]
    assert_same_training(*both([config], source), (8, 3), (8, 3))


@pytest.mark.slow
def test_metrics_are_the_same_at_the_border_of_two_tables(both, make, text):
    packs = both([make(text[0], metrics={"norm": {"kind": "gradient-norm", "every": 1}})] * 2, text[1], seeds=[1, 2])
    for pack in packs:
        pack.advance(8)
    expected, found = (pack.observe() for pack in packs)
    assert expected
    for name, values in expected.items():
        np.testing.assert_array_equal(values, found[name])
    assert packs[1].feed.start == 8
    assert_same_training(*packs, (3,), (3,))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [
    {"width": 2, "devices": 2},
    {"width": 1, "devices": 2},  # the batch is divided
    {"width": 2, "devices": 2, "data": 2},
    {"width": 1, "devices": 2, "model": 2},
], ids=str)  # fmt: skip
def test_two_devices_give_the_same_bits(both, make, text, layout):
    configs = [make(text[0], accumulate=2)] * layout["width"]
    resident, host = both(configs, text[1], seeds=[1, 2][: layout["width"]], **layout)
    numbers = split(configs[0])[1]
    used = [
        collectives(program.advance.lower(*program.shapes(numbers).advance).compile().as_text())
        for program in (resident.program, host.program)
    ]
    assert used[0] == used[1]  # no table leaves its device
    assert_same_training(resident, host, (8, 3), (5, 3, 3))


def test_tables_that_would_be_large_hold_fewer_steps(trainer, make, text, monkeypatch):
    """Each seed's windows are read once for the two runs that use it, and each step once."""
    window = 17 * 4
    monkeypatch.setattr(program_module, "TABLE_BYTES", 3 * (3 * 4 * window) + 1)
    read, config = [], make(text[0], batch_size=4, steps=10)
    source = copy(text[1])
    source.fingerprint = "reads are counted"  # tests share the programs of a source
    source.gather = lambda rows: read.append(rows) or text[1].gather(rows)  # pyright: ignore
    with trainer([config] * 3, source, seeds=[5, 6, 5], feed="host").feed as feed:
        program = feed.program
        assert program.table_steps == 3
        assert {name: a.shape for name, a in program.data_shapes.items()} == {"windows": (1, 3 * 3 * 4, 17)}
        read.clear()
        for step in range(10):
            rows, arrays = feed.read(step, 1)
            for i, seed in enumerate((5, 6, 5)):
                windows = np.asarray(arrays["windows"])[0][rows[i, 0]]
                np.testing.assert_array_equal(windows, source.arrays["windows"][source.rows(seed, step, 1, 4)[0]])
            assert feed.limit(step) == min(3 - step % 3, 3)
    expected = [source.rows(seed, 0, 10, 4) for seed in (5, 6)]
    assert sorted(np.concatenate(read).tolist()) == sorted(np.concatenate(expected, None).tolist())


def test_error_of_the_thread_reaches_the_caller_and_no_thread_is_left(trainer, make, text):
    source = copy(text[1])
    source.fingerprint = "the second table cannot be read"

    def gather(rows):
        if threading.current_thread() is not threading.main_thread():
            calls.append(len(rows))
            if len(calls) == 2:
                raise OSError("the disk is gone")
        return text[1].gather(rows)

    calls, source.gather = [], gather  # pyright: ignore
    with trainer([make(text[0])], source, feed="host").feed as feed:
        feed.read(0, 8)
        assert len(threads()) == 1
        with pytest.raises(OSError, match="disk"):
            feed.read(8, 1)
    assert calls == [32, 16]  # 8 steps, and the last 4
    assert not threads()


def test_feed_is_chosen_by_the_size_of_the_data(make, text, monkeypatch):
    def chosen(source, feed="auto", task=text[0]):
        return choose_compute(make(task, compute={"feed": feed}), source, "float32").feed

    source, size = text[1], sum(a.nbytes for a in text[1].arrays.values())
    assert (chosen(source), chosen(source, "host"), chosen(source, "resident")) == ("resident", "host", "resident")
    monkeypatch.setattr(choosing, "RESIDENT", size)
    assert chosen(source) == "resident"
    monkeypatch.setattr(choosing, "RESIDENT", size - 1)
    assert (chosen(source), chosen(source, "resident")) == ("host", "resident")
    generated = make().task.prepare(None)
    assert {chosen(generated, feed, make().task) for feed in ("auto", "host")} == {"resident"}


def test_source_without_gather_is_resident(make, text, monkeypatch):
    """Tasks of plug-ins need not have the method."""
    monkeypatch.setattr(type(text[1]), "can_gather", False)
    monkeypatch.setattr(choosing, "RESIDENT", 1)
    assert array_shapes(text[1])["windows"].shape == (text[1].num_windows, 17)
    assert choose_compute(make(text[0]), text[1], "float32").feed == "resident"
    with pytest.raises(UserError, match="gather") as refused:
        choose_compute(make(text[0], compute={"feed": "host"}), text[1], "float32")
    assert refused.value.path == ("train", "compute", "feed")
    assert "resident" in (refused.value.remedy or "")


def test_gather_reads_no_other_windows(text):
    """The windows are a view of the text. Shapes are known without a copy of it."""
    source = text[1]
    rows = np.array([5, 0, 5], np.int32)
    for name, windows in source.gather(rows).items():
        np.testing.assert_array_equal(windows, source.arrays[name][rows])
        assert windows.base is None  # a copy, which the thread hands on
    assert {name: (a.shape, a.dtype) for name, a in array_shapes(source).items()} == {
        name: (a.shape, a.dtype) for name, a in source.arrays.items()
    }
