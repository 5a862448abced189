"""Copies off a GPU: a snapshot compared with a pinned copy, and the cost of saves."""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn

from checkpoint.holdfast_candidate import Holdfast
from checkpoint.state import SHAPES, State

URL = "s3://bench/runs"
ROUNDS = 7
EVERY = 20
"""Steps between two saves; a save that is due during another one waits for it."""
STEPS = 200


def copies(state: State, holdfast: Holdfast) -> dict[str, Any]:
    """Durations of copies of the whole state: one pinned copy and a snapshot, alternating."""
    flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in state.tensors()])
    pinned = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True)
    bare_s: list[float] = []
    ours_s: list[float] = []
    stalls_s: list[float] = []
    for number in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began_s = time.monotonic()
        pinned.copy_(flat, non_blocking=True)
        torch.cuda.synchronize()
        middle_s = time.monotonic()
        holdfast.save(number)
        stalls_s.append(time.monotonic() - middle_s)
        holdfast.wait_for_copy()
        ended_s = time.monotonic()
        holdfast.settle()
        holdfast.delete_previous()
        bare_s.append(middle_s - began_s)
        ours_s.append(ended_s - middle_s)
    return {
        "size_bytes": state.size_bytes,
        "pinned_s": bare_s[1:],
        "copy_s": ours_s[1:],
        "host_s": stalls_s[1:],
    }


def steps(first: int) -> dict[str, Any]:
    """Duration of a step of a model on the GPU, without and with regular saves."""
    layers = [m for _ in range(8) for m in (nn.Linear(4096, 4096), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    holdfast = Holdfast({"model": model, "optimizer": optimizer}, URL)
    batch = torch.randn(2048, 4096, device="cuda")

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        holdfast.end_step()

    def timed(saves: bool) -> float:
        number = first
        torch.cuda.synchronize()
        began_s = time.monotonic()
        for i in range(STEPS):
            step()
            if saves and i % EVERY == 0:
                if i:
                    holdfast.settle()
                    holdfast.delete_previous()
                holdfast.save(number)
                number += 1
        torch.cuda.synchronize()
        took_s = time.monotonic() - began_s
        if saves:
            holdfast.settle()
            holdfast.delete_previous()
        return took_s / STEPS

    timed(saves=False)
    pairs = []
    for _ in range(3):
        pairs.append((timed(saves=False), timed(saves=True)))
        first += STEPS
    return {"without_s": [a for a, _ in pairs], "with_s": [b for _, b in pairs], "every": EVERY}


def describe(results: dict[str, Any]) -> str:
    """Format the results."""
    size = results["size_bytes"]
    keys = ("pinned_s", "copy_s", "host_s", "without_s", "with_s")
    bare_s, ours_s, host_s, without_s, with_s = (statistics.median(results[key]) for key in keys)
    added = (with_s / without_s - 1) * 100
    return (
        f"  {size / 1e9:.2f} GB off the GPU: pinned copy {size / bare_s / 1e9:.1f} GB/s, "
        f"snapshot {size / ours_s / 1e9:.1f} GB/s ({bare_s / ours_s:.2f} of it, goal >= 0.85), "
        f"the host stalls for {host_s * 1e3:.1f} ms (goal <= 5)\n"
        f"  step {without_s * 1e3:.1f} ms, with a save every {results['every']} steps {with_s * 1e3:.1f} ms (+{added:.1f} %)"
    )


def main() -> None:
    """Measure and print the results."""
    warnings.simplefilter("ignore")
    arguments = json.loads(sys.argv[1])
    state = State(SHAPES[arguments["size"]], "cuda")
    holdfast = Holdfast(state.objects(), URL)
    results = copies(state, holdfast)
    print(json.dumps({**results, **steps(ROUNDS + 1)}), flush=True)


if __name__ == "__main__":
    main()
