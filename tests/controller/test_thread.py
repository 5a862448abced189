"""The thread of the reconciler: whether it beats is more than whether it is alive."""

from __future__ import annotations

import threading

from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.thread import STALLED_S, ControllerThread
from support.reconciler import PACE, NewReconcilerHarness
from worker.support.run_driver import wait_until


def test_a_stuck_thread_is_alive_and_does_not_beat(new_harness: NewReconcilerHarness) -> None:
    home, now_s = new_harness(), [0.0]
    is_stuck, release = threading.Event(), threading.Event()

    async def block() -> None:
        is_stuck.set()
        release.wait()

    pulse = LauncherHealthMonitor({}, home.clock)
    heart = ControllerThread(home.reconciler, PACE, pulse, [block], monotonic_s=lambda: now_s[0])
    heart.start()
    is_stuck.wait()
    found = [heart.is_alive()]
    now_s[0] = STALLED_S
    found.append(heart.is_alive())
    release.set()
    wait_until(heart.is_alive)
    heart.stop()

    assert found == [True, False]
    assert not heart.is_alive()
