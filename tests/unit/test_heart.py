"""The thread of the reconciler: whether it beats is more than whether it is alive."""

from __future__ import annotations

import threading

from holdfast.heart import STALLED_S, Heart
from holdfast.pulse import Pulse
from watched import PACE, NewHouse
from worker.stage import wait_until


def test_a_stuck_thread_is_alive_and_does_not_beat(house: NewHouse) -> None:
    home, now_s = house(), [0.0]
    is_stuck, release = threading.Event(), threading.Event()

    async def block() -> None:
        is_stuck.set()
        release.wait()

    pulse = Pulse({}, home.clock)
    heart = Heart(home.reconciler, PACE, pulse, [block], monotonic_s=lambda: now_s[0])
    heart.start()
    is_stuck.wait()
    told = [heart.beats()]
    now_s[0] = STALLED_S
    told.append(heart.beats())
    release.set()
    wait_until(heart.beats)
    heart.stop()

    assert told == [True, False]
    assert not heart.beats()
