"""The controller thread: a thread that is alive may still be stuck."""

from __future__ import annotations

import threading

from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.thread import STALLED_S, ControllerThread
from support.reconciler import PACE, NewReconcilerHarness
from worker.support.run_driver import wait_until


def test_stuck_controller_thread_is_detected(new_harness: NewReconcilerHarness) -> None:
    home, now_s = new_harness(), [0.0]
    is_stuck, release = threading.Event(), threading.Event()

    async def block() -> None:
        is_stuck.set()
        release.wait()

    monitor = LauncherHealthMonitor({}, home.clock)
    thread = ControllerThread(home.reconciler, PACE, monitor, [block], monotonic_s=lambda: now_s[0])
    thread.start()
    is_stuck.wait()
    found = [thread.is_alive()]
    now_s[0] = STALLED_S
    found.append(thread.is_alive())
    release.set()
    wait_until(thread.is_alive)
    thread.stop()

    assert found == [True, False]
    assert not thread.is_alive()
