"""A gloo group ends without ending the process, whichever thread drops the last reference."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import HashStore

from holdfast_worker.distributed.connected_group import ConnectedGroup

held = [ConnectedGroup(PrefixStore("test", HashStore()), 0, 1, timedelta(seconds=60))]
is_dropped, has_ended = threading.Event(), threading.Event()


def on_end(is_complete):
    # In gloo's thread.
    is_dropped.wait(60)
    held.clear()
    has_ended.set()


tensor = torch.ones(2)
held[0].begin(lambda group: group.allreduce([tensor]), [tensor], on_end)
is_dropped.set()
assert has_ended.wait(60)
print("ended")
"""


def test_last_reference_may_be_dropped_in_the_thread_of_gloo() -> None:
    """Its destructor waits for this thread."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
