"""A first signal can be recorded or delayed. A second one has its usual effect."""

import os
import signal
import threading

import pytest

from taetpu.core.signals import delay_interrupts, record_signal


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_delayed_interrupt_waits_for_the_end_of_the_block():
    before, done = signal.getsignal(signal.SIGINT), []

    def work():
        with delay_interrupts():
            press()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_is_not_delayed():
    done = []

    def work():
        with delay_interrupts():
            press()
            press()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recorded_signal_restores_the_default_handler(number):
    before = signal.getsignal(number)
    with record_signal(number) as received:
        assert not received()
        os.kill(os.getpid(), number)
        assert received()
        assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        with delay_interrupts():
            pass
    assert signal.getsignal(number) is before


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with record_signal(signal.SIGINT) as received, delay_interrupts():
            found.append((signal.getsignal(signal.SIGINT), received()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, False)]
