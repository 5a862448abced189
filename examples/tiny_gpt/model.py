"""A small GPT, as plain as it can be.

Shapes are suffixes: B = sequences, T = characters, V = vocabulary, C = width, H = heads, D = width of a head.
"""
# ruff: noqa: N803, N806 - names of tensors end in their shapes

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Size of the model; a step of the default takes about 30 ms on one core."""

    vocabulary: int
    context: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal self-attention: every character attends to those before it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.mix = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.dropout = nn.Dropout(size.dropout)
        past_TT = torch.ones(size.context, size.context, dtype=torch.bool).tril()
        self.register_buffer("past_TT", past_TT, persistent=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for part in self.mix(x_BTC).split(C, dim=2)
        )
        score_BHTT = q_BHTD @ k_BHTD.transpose(2, 3) * (C // self.heads) ** -0.5
        score_BHTT = score_BHTT.masked_fill(~self.past_TT[:T, :T], float("-inf"))
        mixed_BHTD = self.dropout(score_BHTT.softmax(dim=3)) @ v_BHTD
        return self.out(mixed_BHTD.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """Attention followed by a feed-forward network."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.before_look = nn.LayerNorm(size.width)
        self.look = Attention(size)
        self.before_think = nn.LayerNorm(size.width)
        self.think = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(size.dropout),
        )

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.look(self.before_look(x_BTC))
        return x_BTC + self.think(self.before_think(x_BTC))


class TinyGPT(nn.Module):
    """Predicts the next character. The embedding and the output layer share their weights."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.out = nn.Linear(size.width, size.vocabulary, bias=False)
        self.out.weight = self.characters.weight
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The cross-entropy loss of `y_BT`, in nats per character."""
        places_T = torch.arange(x_BT.shape[1], device=x_BT.device)
        x_BTC = self.blocks(self.characters(x_BT) + self.places(places_T))
        logits_BTV = self.out(self.norm(x_BTC))
        return functional.cross_entropy(logits_BTV.flatten(0, 1), y_BT.flatten())
