"""Checks that require a GPU, one line each: `python bench/gpu/check.py`.

Exits with 77 without a GPU, and with 1 if a check fails.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.distributed import sharding
from holdfast_worker.telemetry.nvml import open_gpus
from torch import nn

NO_GPU = 77
"""The exit code with which test runners report a skipped test."""

STEPS = 400


def binding(run: Run) -> str:
    """The rank computes on the GPU with its number."""
    assert run.device == torch.device("cuda", 0)
    assert torch.cuda.current_device() == 0
    return torch.cuda.get_device_name(run.device)


def nccl(run: Run) -> str:
    """Gradients are reduced over NCCL."""
    ones = torch.ones(1024, device=run.device)
    dist.all_reduce(ones)
    assert dist.get_backend() == "nccl"
    assert ones.sum().item() == 1024 * run.world_size
    return ".".join(map(str, torch.cuda.nccl.version()))


def autocast(run: Run) -> str:
    """bf16 computes in bf16; the state of an fp16 scaler is saved."""
    model = nn.Linear(64, 64).to(run.device)
    x = torch.randn(8, 64, device=run.device)
    with torch.autocast("cuda", torch.bfloat16):
        assert model(x).dtype is torch.bfloat16
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda", torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    again = torch.amp.GradScaler("cuda")
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == scaler.get_scale()
    return f"scale {scaler.get_scale():.0f}"


def sharded(run: Run) -> str:
    """A model sharded by FSDP2 trains with clipped gradients."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(run.device)
    sharding.shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(8, 64, device=run.device)).square().mean()
    loss.backward()
    norm = sharding.full_tensor(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    assert all(sharding.sharding_of(p) for p in model.parameters())
    return f"norm {norm.item():.3f}"


def memory(run: Run) -> str:
    """The peak of allocated memory is reported."""
    peak = torch.cuda.max_memory_allocated(run.device)
    assert peak > 0
    return f"{peak / 2**20:.1f} MiB at most"


def nvml(run: Run) -> str:
    """NVML reports the GPU of this rank, without a fault; a reading takes less than 0.1 s."""
    gpus = open_gpus(os.environ)
    assert gpus is not None, "nvidia-ml-py reads no GPU"
    begun_s = time.perf_counter()
    [mine, *_] = gpus.read()
    took_ms = 1000 * (time.perf_counter() - begun_s)
    assert mine.memory_used_bytes is not None
    assert mine.memory_used_bytes >= torch.cuda.memory_allocated(run.device)
    assert None not in {mine.temperature_c, mine.power_w, mine.clock_mhz}
    assert mine.faults == (), mine.detail
    assert took_ms < 100
    return f"{mine.temperature_c} C, {mine.power_w:.0f} W, {mine.clock_mhz} MHz, {took_ms:.1f} ms"


def resume(_: Run) -> str:
    """A killed and resumed run is bit-identical to an uninterrupted one, if deterministic."""
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = _train(Path(folder) / "alone", killed_at_step=0)
        killed = _train(Path(folder) / "killed", killed_at_step=40)
        again = _train(Path(folder) / "killed", killed_at_step=0)
    assert killed == ""
    assert uninterrupted == again != ""
    return uninterrupted[:12]


def train_script(killed_at_step: int) -> None:
    """Run a training in a separate process."""
    torch.use_deterministic_algorithms(True)
    run = Run.start()
    layers = (nn.Linear(32, 256), nn.Dropout(0.2), nn.GELU(), nn.Linear(256, 1))
    model = run.wrap(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    run.track(model=model, optimizer=optimizer)
    data = torch.linspace(-1, 1, 640 * 32).reshape(640, 32)
    for x in run.steps(list(data.split(64)), total=STEPS):
        loss = model(x.to(run.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if killed_at_step and run.step >= killed_at_step and any(_store().glob("*/commits/*.json")):
            os.kill(os.getpid(), signal.SIGKILL)
    print(state_dict_digest(model.state_dict()))


def _store() -> Path:
    """The checkpoint directory of this process."""
    return Path(os.environ["HOLDFAST_STORE"].removeprefix("file://"))


def _free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def _train(store: Path, *, killed_at_step: int) -> str:
    """Return the digest that a training prints; empty if it was killed."""
    env = {
        **{k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "MASTER_ADDR"}},
        "HOLDFAST_STORE": f"file://{store}",
        "HOLDFAST_EVERY": "10 steps",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, __file__, "--train", str(killed_at_step)]
    return subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, check=not killed_at_step
    ).stdout.strip()


CHECKS = (binding, nccl, autocast, sharded, memory, nvml, resume)


def failures(run: Run, checks: tuple[Callable[[Run], str], ...]) -> Iterator[str]:
    """Run and print all checks; yield the names of failed ones."""
    for check in checks:
        try:
            shown = check(run)
        except (AssertionError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"FAILED  {check.__name__}: {check.__doc__} {error!r}")
            yield check.__name__
        else:
            print(f"ok      {check.__name__}: {check.__doc__} {shown}")


def main() -> int:
    if "--train" in sys.argv:
        train_script(int(sys.argv[-1]))
        return 0
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return NO_GPU
    uninterrupted = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({**uninterrupted, "MASTER_PORT": _free_port()})
    run = Run.start()
    return 1 if list(failures(run, CHECKS)) else 0


if __name__ == "__main__":
    sys.exit(main())
