"""Two ranks, of which the second one stops within a message: python stopped_peer.py RANK PORT SENDER.

Once it reads a line, the first one leaves the group, and prints the number of each collective that has not ended.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
from holdfast_worker.distributed.connected_group import ConnectedGroup
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, TCPStore

NUMBERS = 64 * 1024 * 1024
"""More than the kernel buffers."""
TIMEOUT = timedelta(seconds=60)

rank, port, sender = map(int, sys.argv[1:])
store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=TIMEOUT)
if rank:
    store.set("process", str(os.getpid()))
peer = int(store.get("process"))
group = RecoverableGroup(rank, 2)
group.connect(ConnectedGroup(PrefixStore("ranks", store), rank, 2, TIMEOUT))
group.barrier().wait()
tensor = torch.full((NUMBERS,), float(rank == sender))
options = BroadcastOptions()
options.rootRank = sender
group.broadcast([tensor], options)
if rank != sender:
    while not tensor[0]:  # Until the message has begun.
        pass
    os.kill(peer, signal.SIGSTOP)
input()
group.interrupt()
group.close(20.0)
print(*(each.number for each in group.unfinished()))
