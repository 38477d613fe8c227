"""The clock of a pack divides all of its wall time among parts, each second into one."""

import threading
import time
from contextlib import suppress

import jax
import jax.numpy as jnp
import pytest

from taetpu.core.errors import UserError
from taetpu.store.pack_times import PARTS
from taetpu.train.pack_clock import PackClock


def slow_to_compile(scale):
    """Return a new function whose trace contains the trace and the compilation of another function."""

    @jax.jit
    def inner(x):
        for _ in range(60):
            x = jnp.sort(jnp.sin(x) * scale)
        return x

    @jax.jit
    def outer(x):
        with jax.ensure_compile_time_eval():
            constant = inner(jnp.ones(8))
        return x + constant

    return outer


def test_parts_are_disjoint_and_add_up_to_the_wall_time():
    began = time.monotonic()
    with PackClock() as clock:
        time.sleep(0.02)
        with clock.spend("trained"):
            time.sleep(0.05)
            with clock.spend("written"):
                time.sleep(0.1)
            time.sleep(0.05)
        with clock.spend("evaluated"):
            time.sleep(0.03)
    wall = time.monotonic() - began
    slept = {"other": 0.02, "trained": 0.1, "written": 0.1, "evaluated": 0.03}
    assert set(clock.parts) == set(PARTS)
    assert all(clock.parts[part] >= seconds for part, seconds in slept.items())
    assert clock.parts["compiled"] == clock.parts["waited"] == 0
    assert sum(clock.parts.values()) == pytest.approx(wall, abs=0.01)  # only the creation of the clock is outside


def test_compilation_is_counted_once_wherever_it_happens():
    """JAX reports the duration of a trace, and those of the compilations within it again."""
    durations = list[float]()
    x = jnp.ones(8)
    with PackClock() as clock:
        jax.monitoring.register_event_duration_secs_listener(listen := lambda event, took, **_: durations.append(took))
        with clock.spend("trained"):
            began = time.monotonic()
            jax.block_until_ready(slow_to_compile(2.0)(x))
            call = time.monotonic() - began
            time.sleep(0.2)
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sum(durations) > call  # so that a sum of all durations would be wrong
    assert 0.5 * call < clock.parts["compiled"] <= call
    assert clock.parts["trained"] >= 0.2
    assert clock.parts["trained"] + clock.parts["compiled"] >= call + 0.2


def test_a_compilation_in_another_thread_is_not_counted():
    thread = threading.Thread(target=lambda: slow_to_compile(3.0)(jnp.ones(8)))
    with PackClock() as clock:
        thread.start()
        thread.join()
    assert clock.parts["compiled"] == 0
    assert clock.parts["other"] > 0


def test_earlier_parts_are_added_to_and_waits_are_counted():
    with PackClock(earlier={"trained": 3.0, "waited": 1.0}, waited=0.5) as clock, clock.spend("trained"):
        time.sleep(0.02)
    assert 3.02 <= clock.parts["trained"] < 4
    assert clock.parts["waited"] == 1.5


def test_parts_are_stored_at_intervals_and_at_the_end_also_after_an_error():
    stored = list[dict[str, float]]()
    with suppress(ZeroDivisionError), PackClock(stored.append) as clock:
        clock.note(60.0)
        assert stored == []
        time.sleep(0.02)
        clock.note(0.01)
        clock.note(60.0)
        assert len(stored) == 1
        _ = 1 / 0
    assert len(stored) == 2
    assert sum(stored[1].values()) >= sum(stored[0].values()) >= 0.02


def test_a_store_that_cannot_be_written_stops_no_training():
    def refuse(parts):
        raise UserError("the disk is full")

    with PackClock(refuse) as clock:
        clock.note(0.0)
