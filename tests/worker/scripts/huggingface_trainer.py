"""A script around Hugging Face's Trainer: python huggingface_trainer.py FOLDER STEPS [--fall RANK:STEP:SIGNAL]

Every rank is a node of its own: it has its own folder, and sees no other. At the end the same is trained once more, by a
plain Trainer without interruptions.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import os
from pathlib import Path

import torch
from ddp import NOTHING, Fate
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.huggingface import HoldfastCallback
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


class Fall(TrainerCallback):
    """Has one rank fall after a step, or be told to go."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate

    def on_step_begin(self, args, state, control, **_) -> None:
        self.fate.befall(int(os.environ["RANK"]), state.global_step)


def make(folder: str, steps: int, *callbacks: TrainerCallback) -> Trainer:
    """A Trainer before its first step, always the same."""
    torch.manual_seed(7)  # The Trainer sets a seed of its own, but when the model is made already.
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
    parser.add_argument("--fall", type=Fate, default=NOTHING)
    args = parser.parse_args()
    os.environ["LOCAL_RANK"] = "0"
    torch.set_num_threads(1)
    folder = f"{args.folder}/node-{os.environ['RANK']}"

    holdfast = HoldfastCallback()
    kept = make(folder, args.steps, holdfast, Fall(args.fall))
    kept.train(resume_from_checkpoint=holdfast.newest)
    plain = make(folder, args.steps)
    plain.train()

    if holdfast.run.rank == 0:
        digests = [state_dict_digest(trainer.model.state_dict()) for trainer in (kept, plain)]
        Path(os.environ["LESSON_RESULT"]).write_text(" ".join(digests))


if __name__ == "__main__":
    main()
