"""Ctrl-C that somebody swallows is heard all the same; one that is held waits for the end of the block."""

import gc
import os
import signal
import threading

import pytest

from taetpu.core.signals import delay_interrupts, raise_interrupts


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_swallowed_interrupt_is_raised_again_at_the_next_check():
    before = signal.getsignal(signal.SIGINT)
    with raise_interrupts() as check:
        check()  # nothing was pressed yet
        try:
            press()
            swallowed = False
        except KeyboardInterrupt:
            swallowed = True
        assert swallowed
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_raised_at_the_next_check(capfd):
    def callback(phase: str, info: dict) -> None:
        if phase == "start":
            press()

    with raise_interrupts() as check:
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        assert capfd.readouterr().err == ""  # Python prints what it drops
        with pytest.raises(KeyboardInterrupt):
            check()


def test_a_held_interrupt_waits_for_the_end_of_the_block():
    before, done = signal.getsignal(signal.SIGINT), []

    def work():
        with delay_interrupts():
            press()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is before


def test_pressed_twice_it_waits_no_longer():
    done = []

    def work():
        with delay_interrupts():
            press()
            press()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


def test_in_another_thread_both_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with raise_interrupts() as check, delay_interrupts():
            check()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
