"""A script with Hugging Face's Trainer.

python huggingface_trainer.py FOLDER STEPS [--fall RANK:STEP:SIGNAL]

Each rank is a separate node with its own folder. At the end the same training is repeated by a plain Trainer without
interruptions.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import os
from pathlib import Path

import torch
from ddp import NOTHING, InjectedSignal, settle
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.huggingface import HoldfastCallback
from holdfast_worker.run import Run
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Sums(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x_C = torch.arange(8).float().add(i).sin()
        return {"x": x_C, "labels": x_C.sum()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(x).squeeze(1) - labels).square().mean()}


class SignalCallback(TrainerCallback):
    """Kills or signals one rank after a step, once the saves so far are complete."""

    def __init__(self, run: Run, injected_signal: InjectedSignal) -> None:
        self.run = run
        self.injected_signal = injected_signal

    def on_step_begin(self, args, state, control, **_) -> None:
        settle(self.run)
        self.injected_signal.send(int(os.environ["RANK"]), state.global_step)


def make(folder: str, steps: int, *callbacks: TrainerCallback) -> Trainer:
    """A Trainer before its first step, always in the same state."""
    torch.manual_seed(7)  # The Trainer sets its own seed, but only after the model is created.
    settings = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    data = Sums()
    return Trainer(Net(), settings, train_dataset=data, eval_dataset=data, callbacks=[*callbacks])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("steps", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    args = parser.parse_args()
    os.environ["LOCAL_RANK"] = "0"
    torch.set_num_threads(1)
    folder = f"{args.folder}/node-{os.environ['RANK']}"

    holdfast = HoldfastCallback()
    kept = make(folder, args.steps, holdfast)
    kept.add_callback(SignalCallback(holdfast.run, args.fall))
    kept.train(resume_from_checkpoint=holdfast.newest)
    plain = make(folder, args.steps)
    plain.train()

    if holdfast.run.rank == 0:
        digests = [state_dict_digest(trainer.model.state_dict()) for trainer in (kept, plain)]
        Path(os.environ["LESSON_RESULT"]).write_text(" ".join(digests))


if __name__ == "__main__":
    main()
