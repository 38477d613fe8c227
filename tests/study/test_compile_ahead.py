"""The program of the next pack, compiled while a pack trains: the same bits, errors and Ctrl-C at their usual places.

It is done on TPUs only. These tests do it on the CPU, where it saves no time.
"""

import threading
from collections import Counter

import jax
import pytest
from tests.small import TINY
from tests.study.killed_side_by_side import stored

from taetpu.train import program_cache
from taetpu.train.callbacks import Callback
from taetpu.train.profile import COMPILED
from taetpu.train.program import Program
from taetpu.train.program_cache import AheadCompilation

STUDY = (
    TINY.replace("eval_every: 6", "eval_every: 2, checkpoint: eval").replace(
        "mixer: {kind: attention, num_heads: 2}", "mixer: none"
    )
    + "arms:\n  relu: {model.ffn: relu}\n"
)
FUNCTIONS = ("advance", "evaluate", "init")


@pytest.fixture
def compiled():
    """The number of compilations of each function, by its name and whether the main thread compiled it."""
    counts = Counter()

    def listen(event, duration_secs, **about):
        if event == COMPILED:
            name = str(about.get("fun_name")).removeprefix("jit(").removesuffix(")")
            counts[name, threading.current_thread() is threading.main_thread()] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counts
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.setattr(program_cache, "AHEAD_ON", ("cpu",))


@pytest.mark.slow
def test_results_are_those_without_it_and_the_second_pack_compiles_nothing(study, monkeypatch, compiled):
    _, usual = study(STUDY, root="usual")
    assert [compiled[name, True] for name in FUNCTIONS] == [2, 2, 2]
    compiled.clear()
    monkeypatch.setattr(program_cache, "AHEAD_ON", ("cpu",))
    _, folder = study(STUDY, root="ahead")
    assert stored(folder) == stored(usual)
    assert [compiled[name, True] for name in FUNCTIONS] == [1, 1, 1]  # those of the first pack
    assert [compiled[name, False] for name in FUNCTIONS] == [1, 1, 1]  # those of the second, which JAX finds then


@pytest.mark.slow
def test_an_error_is_that_of_the_pack_it_belongs_to(study, monkeypatch, ahead):
    """The program of the second pack cannot be traced."""
    context, traced, events = Program.context, list[bool](), list[tuple[str, str]]()

    def broken(self, *args):
        if self.structure.model.layers[0].ffn.kind == "relu":
            traced.append(threading.current_thread() is threading.main_thread())
            raise ZeroDivisionError("no such program")
        return context(self, *args)

    class Seen(Callback):
        def on_pack_end(self, runs):
            events.append(("end", runs[0].arm))

        def on_pack_failed(self, runs, error):
            events.append((str(error), runs[0].arm))

    monkeypatch.setattr(Program, "context", broken)
    outcome, _ = study(STUDY, callback=Seen())
    assert events == [("end", "baseline"), ("no such program", "relu")]
    assert [type(failure.error) for failure in outcome.failed] == [ZeroDivisionError]
    assert traced == [False, True]  # first while the baseline trained


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_compilation_and_no_other_begins(study, monkeypatch, ahead):
    functions, running, may_end, begun = AheadCompilation._functions, threading.Event(), threading.Event(), []

    class Gated:
        """A lowered function that is not compiled until the test allows it."""

        def __init__(self, lowered):
            self.lowered = lowered

        def compile(self):
            begun.append(self)
            running.set()
            assert may_end.wait(60)
            return self.lowered.compile()

    class Interrupting(Callback):
        def on_evaluate(self, step, run, values):
            if step:
                assert running.wait(60)
                raise KeyboardInterrupt

    monkeypatch.setattr(AheadCompilation, "_functions", lambda self: map(Gated, functions(self)))
    with pytest.raises(KeyboardInterrupt):
        study(STUDY, callback=Interrupting())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "compile ahead"]
    assert thread.is_alive()  # so that the interruption did not wait for it
    may_end.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(begun) == 1
