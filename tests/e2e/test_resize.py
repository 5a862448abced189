"""A job is paused and continues on fewer and on more nodes: each sample is used once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.live_service import Service

SAMPLES, STEP = 720, 12
STEPS = SAMPLES // STEP
SCRIPT = f"""
import os
import time
from pathlib import Path

import torch
from holdfast_worker import Run
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

run = Run.start()
data = TensorDataset(torch.arange({SAMPLES}))
sampler = DistributedSampler(data, run.world_size, run.rank, seed=7)
loader = DataLoader(data, {STEP} // run.world_size, sampler=sampler)
model = run.wrap(nn.Linear(1, 1))
optimizer = torch.optim.AdamW(model.parameters())
run.track(model=model, optimizer=optimizer)
with (Path(os.environ["SEEN"]) / f"{{run.world_size}}-{{run.rank}}").open("a") as seen:
    for [numbers] in run.steps(loader, total={STEPS}):
        optimizer.zero_grad()
        model(numbers[:, None].float()).sum().backward()
        optimizer.step()
        seen.write("".join(f"{{number}}\\n" for number in numbers.tolist()))
        seen.flush()
        # Long steps from where a test pauses the job, so that it does not end before.
        held_from = {{2: {STEPS // 6}, 1: {STEPS // 2}}}.get(run.world_size, {STEPS})
        time.sleep(1.0 if run.step >= held_from else 0.05)
"""


def submitted(service: Service) -> str:
    code, seen = service.folder / "code", service.folder / "seen"
    code.mkdir()
    seen.mkdir()
    (code / "train.py").write_text(SCRIPT)
    return service.submit(
        name="resized",
        num_nodes=2,
        workdir=str(code),
        run="holdfast-worker run train.py",
        envs={"SEEN": str(seen)},
        holdfast={"checkpoint": {"store": f"file://{service.folder}/store", "every": "30m"}},
    )


def paused_after(service: Service, job: str, step: int, attempt: int) -> None:
    """Pause a job in an attempt that has trained, at this step or later."""
    begin = service.json("show", job)["step"] or 0
    service.until(
        job, lambda shown: shown["attempt"] == attempt and shown["step"] >= max(step, begin + 1)
    )
    assert service.cli("pause", job).returncode == 0
    service.until(job, lambda shown: shown["state"] == "paused")


def samples(folder: Path) -> dict[int, Counter[str]]:
    """How often each sample was used, by the number of ranks that trained."""
    found = dict[int, Counter[str]]()
    for file in folder.iterdir():
        ranks = int(file.name.split("-")[0])
        found.setdefault(ranks, Counter()).update(file.read_text().split())
    return found


@pytest.mark.full
def test_each_sample_is_used_once_on_two_one_and_three_nodes(service: Service) -> None:
    job = submitted(service)

    paused_after(service, job, STEPS // 6, 1)
    preview: dict[str, Any] = service.json("resume", job, "--nodes", "1", "--dry-run")
    assert service.cli("resume", job, "--nodes", "1").returncode == 0
    paused_after(service, job, STEPS // 2, 2)
    assert service.cli("resume", job, "--nodes", "3").returncode == 0
    done = service.ended(job)

    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert (done["state"], done["nodes"], done["lost_steps"]) == ("succeeded", 3, 0)
    assert (preview["ranks_before"], preview["ranks_after"]) == (2, 1)
    assert "a step takes 6 samples instead of 12" in preview["batch"]
    assert "its checkpoints fit any number of ranks" in preview["checkpoints"]
    assert preview["refused"] == []
    used = samples(service.folder / "seen")
    assert sorted(used) == [1, 2, 3]
    together = used[1] + used[2] + used[3]
    assert len(together) == SAMPLES
    assert set(together.values()) == {1}
    attempts = service.get(f"/v1/jobs/{job}/attempts").json()
    assert [attempt["nodes"] for attempt in attempts] == [2, 1, 3]
