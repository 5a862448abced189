"""Train a small GPT on the sonnets. Kill it whenever you like: it ends with the same weights.

python train.py --steps 300                          # alone
holdfast-worker run train.py --steps 300             # as a job does it
"""
# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import time
from pathlib import Path

import torch
from data import Text
from holdfast_worker import Run
from model import Size, TinyGPT
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="shortest step, to watch")
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # The number of threads changes the last bits of sums.
    run = Run.start()
    run.describe(**vars(args))

    text = Text(Path(__file__).with_name("text.txt"), context=64)
    sampler = DistributedSampler(text, run.world_size, run.rank) if run.world_size > 1 else None
    loader = DataLoader(text, args.batch_size, shuffle=sampler is None, sampler=sampler)

    model = run.wrap(TinyGPT(Size(len(text.vocabulary))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps + 1)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)

    for x_BT, y_BT in run.steps(loader, total=args.steps):
        began_s = time.monotonic()
        loss = model(x_BT.to(run.device), y_BT.to(run.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss, learning_rate=scheduler.get_last_lr()[0])
        if run.rank == 0 and (run.step + 1) % 25 == 0:
            print(f"step {run.step + 1}/{args.steps}  loss {loss.item():.3f}")
        time.sleep(max(0.0, began_s + args.step_seconds - time.monotonic()))

    if run.rank == 0:
        print(f"trained for {run.step} steps")


if __name__ == "__main__":
    main()
