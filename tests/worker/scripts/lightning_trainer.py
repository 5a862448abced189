"""A script with Lightning's Trainer.

python lightning_trainer.py STEPS [--fall RANK:STEP:SIGNAL]

At the end the same training is repeated by a plain Trainer without interruptions.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from ddp import NOTHING, InjectedSignal, settle
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.integrations.framework_run import FrameworkRun
from holdfast_worker.lightning import HoldfastCallback
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = (self.layers(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Sums(Dataset[tuple[Tensor, Tensor]]):
    """Data with a state, different on each rank."""

    def __init__(self) -> None:
        self.x_NC = torch.linspace(-1, 1, 96 * 8).reshape(96, 8)
        self.shift = int(os.environ["RANK"])

    def __len__(self) -> int:
        return len(self.x_NC)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x_C = self.x_NC[i] + self.shift + 0.1 * torch.randn(8)
        return x_C, x_C.sum().sin()

    def state_dict(self) -> dict[str, int]:
        return {"shift": self.shift}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.shift = state["shift"]


class SignalCallback(Callback):
    """Kills or signals one rank after a step, once the saves so far are complete."""

    def __init__(self, run: FrameworkRun, injected_signal: InjectedSignal) -> None:
        self.run = run
        self.injected_signal = injected_signal

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        settle(self.run)
        self.injected_signal.send(trainer.global_rank, trainer.global_step)


class WarmUpCallback(Callback):
    """Warms DDP up as a run does, as the sum of three gradients depends on their order."""

    def __init__(self, run: FrameworkRun) -> None:
        self.run = run

    def on_train_start(self, trainer: Trainer, *_: object) -> None:
        self.run.warm_up_ddp(trainer.strategy.model)


def fit(steps: int, callbacks: list[Callback], resume_from: str | None) -> str:
    """Digest of the weights after `steps` steps."""
    pytorch_lightning.seed_everything(7, verbose=False)
    net = Net()
    data, ranks = Sums(), int(os.environ["WORLD_SIZE"])
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = StatefulDataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
    trainer = Trainer(
        accelerator="cpu",
        devices=local_ranks,
        num_nodes=ranks // local_ranks,
        max_steps=steps,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, loader, ckpt_path=resume_from)
    return state_dict_digest(net.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # About loaders with few workers.
    torch.set_num_threads(1)

    holdfast = HoldfastCallback()
    kept = fit(args.steps, [holdfast, SignalCallback(holdfast.run, args.fall)], holdfast.newest)
    plain = fit(args.steps, [WarmUpCallback(holdfast.run)], None)

    if holdfast.run.rank == 0:
        Path(os.environ["LESSON_RESULT"]).write_text(f"{kept} {plain}")


if __name__ == "__main__":
    main()
