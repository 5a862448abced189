"""Text as pairs of sequences: characters, and the next character after each of them."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Text(Dataset[tuple[Tensor, Tensor]]):
    """All sequences of `context` characters of a file."""

    def __init__(self, file: Path, context: int) -> None:
        text = file.read_text(encoding="utf-8")
        self.vocabulary = sorted(set(text))
        number = {character: i for i, character in enumerate(self.vocabulary)}
        self.ids = torch.tensor([number[character] for character in text])
        self.context = context

    def __len__(self) -> int:
        return len(self.ids) - self.context

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        """`x_T` and `y_T`, where `y_T` is shifted by one character."""
        stretch = self.ids[start : start + self.context + 1]
        return stretch[:-1], stretch[1:]
