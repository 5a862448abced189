"""Training scripts of the comparison in `lost_ranks.py`, one for each way to recover.

They train the same model with the same steps, and write marks: `<name> <time> <values>`, one file for each process. Holdfast's own
marks come from wrapped functions, so that the product itself writes none.
"""

from __future__ import annotations

from typing import Final

SAVE_EVERY: Final = 20

_COMMON: Final = """
import os, time
from pathlib import Path

NODE = os.environ["SKYPILOT_NODE_RANK"]

def opened(node):
    return open(os.environ["MARKS"] + f"/{node}-{os.getpid()}", "a", buffering=1)

MARKS = opened(NODE)

def mark(name, *values):
    print(name, time.time(), *values, file=MARKS)

mark("script")
import torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(1)
WIDTH, HALF_S = int(os.environ["WIDTH"]), float(os.environ["STEP_S"]) / 2
layers = [torch.nn.Linear(64, WIDTH), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1)]
data = torch.ones(30_000, 64)

def gradients(model, x):
    time.sleep(HALF_S)
    loss = model(x).mean()
    time.sleep(HALF_S)
    loss.backward()
"""

HOLDFAST: Final = f"""{_COMMON}
from torch.utils.data import DistributedSampler
from holdfast_worker import Run
from holdfast_worker.recovery import recovery

def marked(name, call):
    def calls(*given, **named):
        result = call(*given, **named)
        mark(name)
        return result
    return calls

mark("imported")
recovery.ConnectedGroup = marked("connected", recovery.ConnectedGroup)
recovery.GroupFiles.request = marked("asked", recovery.GroupFiles.request)
run = Run.start()
mark("joined")
model = run.wrap(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data, 8, sampler=DistributedSampler(data, run.world_size, run.rank))
run.track(model=model, optimizer=optimizer)
mark("state")
for x in run.steps(loader, total=10**6):
    gradients(model, x)
    optimizer.step()
    optimizer.zero_grad()
    mark("step", run.step + 1)
"""

PLAIN: Final = f"""{_COMMON}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

mark("imported")
dist.init_process_group("gloo")
mark("joined")
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
file, step = os.environ["SAVED"], 0
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
mark("state")
for x in DataLoader(data, 8, sampler=DistributedSampler(data)):
    gradients(model, x)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    mark("step", step)
    if step % {SAVE_EVERY} == 0 and dist.get_rank() == 0:
        state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}
        torch.save(state, file + ".draft")
        os.replace(file + ".draft", file)
"""
"""As in torchrun's documentation: rank 0 saves, and all ranks load what was saved."""

TORCHFT: Final = f"""{_COMMON}
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

mark("imported")

class Model(DistributedDataParallel):
    @staticmethod
    def _comm_hook(manager, bucket):
        manager.allreduce(bucket.buffer()).wait()
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

def load_state_dict(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

def state_dict():
    return {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}

manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=2,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"group_{{NODE}}",
    hostname="127.0.0.1",
)
mark("joined")
model = Model(manager, torch.nn.Sequential(*layers))
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters()))
sampler = DistributedSampler(data, int(NODE), 3, group_rank=0, num_replicas=1)
mark("state")
for x in DataLoader(data, 8, sampler=sampler):
    optimizer.zero_grad()
    gradients(model, x)
    before = manager.current_step()
    takes_part = manager.is_participating()
    optimizer.step()
    is_committed = manager.current_step() > before
    mark("step" if is_committed and takes_part else "dropped", before + 1)
"""
"""As in torchft's documentation: the state comes from another group, and each group has a loader of its own.

The hook is replaced because that of torchft 0.2.0 raises an AssertionError in the survivors if an all-reduce of gloo fails.
"""

LIGHTHOUSE: Final = """
from torchft._torchft import lighthouse_main

lighthouse_main()
"""
"""The command `torchft_lighthouse`, without its console script. It reads the arguments of the process itself."""

FLOOR: Final = f"""{_COMMON}
from datetime import timedelta
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

mark("imported")
spare = NODE == "3"
store = TCPStore("127.0.0.1", int(os.environ["PORT"]), is_master=spare, wait_for_workers=False)

def group(rank, number):
    joined = ProcessGroupGloo(PrefixStore(str(number), store), rank, 3, timedelta(seconds=60))
    mark("connected")
    return joined

model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
step, rank, number = 0, int(NODE), 0
if spare:
    lost = Path(os.environ["LOST"])
    while not lost.exists():
        time.sleep(0.001)
    rank, step, number = map(int, lost.read_text().split())
    MARKS = opened(rank)
    mark("asked")
gloo = group(rank, number)
for x in DataLoader(data, 8):
    gradients(model, x)
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    while True:
        try:
            gloo.allreduce([flat.clone()]).wait()
            break
        except RuntimeError:
            mark("asked")
            gloo.abort()
            number += 1
            gloo = group(rank, number)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    mark("step", step)
"""
"""The spare process waits in its interpreter, and the survivors keep their gradients. No state is handed out."""
