"""Machines are not asked for faster than the API bears, however many commands ask."""

import threading

from taetpu.cloud import pace
from taetpu.cloud.pace import A_MINUTE, AT_ONCE, wait_turn


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.time = 1e9

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_a_loop_that_asks_without_a_pause_stays_far_below_what_the_api_bears(tmp_path):
    clock = Clock()
    moments = []
    for _ in range(300):
        wait_turn(tmp_path, clock.now, clock.sleep)
        moments.append(clock.time)
    assert moments[AT_ONCE - 1] == moments[0], "a few do not wait at all"
    worst = max(sum(start <= moment < start + 60 for moment in moments) for start in moments)
    assert worst <= AT_ONCE + A_MINUTE < 91 * 0.6


def test_a_pause_gives_turns_back_and_no_more_than_there_were(tmp_path):
    clock = Clock()
    for _ in range(AT_ONCE):
        assert wait_turn(tmp_path, clock.now, clock.sleep) == 0
    assert wait_turn(tmp_path, clock.now, clock.sleep) == 60 / A_MINUTE
    clock.time += 1e6
    assert [wait_turn(tmp_path, clock.now, clock.sleep) for _ in range(AT_ONCE)] == [0.0] * AT_ONCE
    assert wait_turn(tmp_path, clock.now, clock.sleep) > 0
    clock.time -= 1e6  # a clock that was set back keeps nobody waiting for as long
    assert wait_turn(tmp_path, clock.now, clock.sleep) <= 60 / A_MINUTE


def test_a_file_that_says_nothing_keeps_nobody_waiting(tmp_path):
    for nonsense in ("", "{", "[1]", '"x"', "null", "[1, 2, 3]"):
        (tmp_path / "pace").write_text(nonsense)
        assert wait_turn(tmp_path) == 0


def test_commands_that_run_side_by_side_share_the_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "A_MINUTE", 60e-6)  # none comes back while this runs
    went, lock = [], threading.Lock()

    class Enough(Exception):
        pass

    def full(seconds: float) -> None:
        raise Enough

    def ask() -> None:
        for _ in range(AT_ONCE):
            try:
                wait_turn(tmp_path, sleep=full)
            except Enough:
                return
            with lock:
                went.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(went) == AT_ONCE
