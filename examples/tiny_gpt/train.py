"""Train a small GPT on the sonnets.

The final weights are the same, however often it is interrupted.

python train.py --steps 300                          # alone
holdfast-worker run train.py --steps 300             # as in a job
holdfast-worker run train.py --accumulate 4 --clip 1 --precision bf16 --shard
"""
# ruff: noqa: N803, N806 - names of tensors end in their shapes

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
from data import Text
from holdfast_worker import Run
from model import Size, TinyGPT
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

Pair = tuple[Tensor, Tensor]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parts(model: nn.Module, number: int, x_BT: Tensor, y_BT: Tensor) -> Iterator[Pair]:
    """A batch in equal parts. Under DDP, ranks synchronize gradients only with the last part."""
    *first, last = zip(x_BT.chunk(number), y_BT.chunk(number), strict=True)
    with model.no_sync() if hasattr(model, "no_sync") else nullcontext():
        yield from first
    yield last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of each batch")
    parser.add_argument("--clip", type=float, help="maximum norm of the gradients")
    parser.add_argument("--precision", choices=["fp32", *HALVES], default="fp32")
    parser.add_argument("--shard", action="store_true", help="shard the model over the ranks")
    parser.add_argument(
        "--step-seconds", type=float, default=0.0, help="minimum duration of a step"
    )
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # The number of threads changes the last bits of sums.
    run = Run.start()
    run.describe(**vars(args))

    text = Text(Path(__file__).with_name("text.txt"), context=64)
    sampler = DistributedSampler(text, run.world_size, run.rank) if run.world_size > 1 else None
    loader = DataLoader(text, args.batch_size, shuffle=sampler is None, sampler=sampler)

    model = run.wrap(TinyGPT(Size(len(text.vocabulary))), shard=args.shard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps + 1)
    half = HALVES.get(args.precision)
    scaler = torch.amp.GradScaler(run.device.type, enabled=half is torch.float16)
    kept = {"scaler": scaler} if scaler.is_enabled() else {}
    run.track(model=model, optimizer=optimizer, scheduler=scheduler, **kept)

    for x_BT, y_BT in run.steps(loader, total=args.steps):
        began_s = time.monotonic()
        optimizer.zero_grad()
        loss = torch.zeros((), device=run.device)
        for x_bT, y_bT in parts(model, args.accumulate, x_BT.to(run.device), y_BT.to(run.device)):
            with torch.autocast(run.device.type, half, enabled=half is not None):
                share = model(x_bT, y_bT) * (len(x_bT) / len(x_BT))
            scaler.scale(share).backward()
            loss += share.detach()
        if args.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        tokens = x_BT.numel() * run.world_size
        run.log(loss=loss, learning_rate=scheduler.get_last_lr()[0], tokens=tokens)
        if run.rank == 0 and (run.step + 1) % 25 == 0:
            print(f"step {run.step + 1}/{args.steps}  loss {loss.item():.3f}")
        time.sleep(max(0.0, began_s + args.step_seconds - time.monotonic()))

    if run.rank == 0:
        print(f"trained for {run.step} steps")


if __name__ == "__main__":
    main()
