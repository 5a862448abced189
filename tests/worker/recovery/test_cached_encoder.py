"""In each step, only the parts of a rank's own state that have changed are encoded."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_worker.checkpoint.state_dict import InlineEncoder
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.data.resumable_loader import ResumableLoader
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from holdfast_worker.recovery import cached_encoder, run_state
from holdfast_worker.recovery.cached_encoder import CachedEncoder
from holdfast_worker.recovery.run_state import RunState
from torch import nn
from torch.utils.data import DataLoader

GENERATORS = "own[0].present.global"

Paths = list[str]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Paths of the parts that are encoded."""
    paths: Paths = []

    class Recorder:
        def encode(self, value: object, path: str) -> Any:
            paths.append(path)
            return InlineEncoder().encode(value, path)

    monkeypatch.setattr(cached_encoder, "InlineEncoder", Recorder)
    monkeypatch.setattr(run_state, "InlineEncoder", Recorder)
    return paths


class Rank:
    """A rank in its training loop, whose model has buffers of its own."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4))
        tracked = TrackedState({"model": self.model}, per_rank=True)
        self.state = RunState(tracked, RecoverableGroup(0, 2))
        # One pass is longer than any test.
        self.feed = ResumableLoader(DataLoader(torch.ones(800, 4), 8, shuffle=True))
        self.batches: Iterator[Any] = iter(self.feed)
        self.start_step()

    def start_step(self) -> None:
        next(self.batches)

    def capture(self) -> bytes:
        return self.state.capture_own(self.feed.position)


@pytest.fixture
def rank(encoded: Paths) -> Rank:
    rank = Rank()
    rank.capture()
    encoded.clear()
    return rank


def test_unchanged_state_is_not_encoded_again(rank: Rank, encoded: Paths) -> None:
    first = rank.capture()

    assert rank.capture() == first
    assert encoded == []


def test_next_batch_alone_encodes_no_generator(rank: Rank, encoded: Paths) -> None:
    before = rank.capture()
    rank.start_step()

    assert rank.capture() != before
    assert encoded == []


def test_draw_encodes_one_generator(rank: Rank, encoded: Paths) -> None:
    torch.rand(1)
    rank.capture()
    random.random()
    rank.capture()
    np.random.random()  # noqa: NPY002 - the global generator is part of the state
    rank.capture()

    assert encoded == [f"{GENERATORS}.{name}" for name in ("torch", "python", "numpy")]


def test_second_normal_number_changes_the_generator(rank: Rank, encoded: Paths) -> None:
    # It was drawn with the first one: only a flag and the number itself change.
    np.random.standard_normal()  # noqa: NPY002 - as above
    rank.capture()
    np.random.standard_normal()  # noqa: NPY002
    rank.capture()

    assert encoded == [f"{GENERATORS}.numpy"] * 2


def test_step_encodes_its_generator_and_buffers_once(rank: Rank, encoded: Paths) -> None:
    for _ in range(3):
        rank.model(torch.ones(8, 4))
        rank.capture()
        rank.capture()

    assert encoded.count(f"{GENERATORS}.torch") == 3
    assert not any(encoded.count(path) > 3 for path in encoded)
    assert not any("dawn" in path or "deal" in path for path in encoded)


def test_text_is_that_of_the_plain_encoder() -> None:
    tree = {
        "numbers": [1, True, None, 0.5, float("nan"), 1 << 80],
        "text": '\u00e9 "',
        "tuples": [(), (1, 2), (1.5, (np.arange(3),)), {1: "a key", "$": 2}],
        "tensors": {"a": torch.ones(2, 3), "b": torch.ones(2).bfloat16(), "none": torch.ones(0)},
    }
    encoder = CachedEncoder()

    for _ in range(2):
        assert json.loads(encoder.encode(tree, "x")) == InlineEncoder().encode(tree, "x")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0.0, -0.0),
        ((1,), (True,)),
        ((1, 2.0), (1, 2)),
        (np.zeros(1, np.int32), np.zeros(1, np.float32)),
        (torch.zeros(2, 1), torch.zeros(1, 2)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
        ({1: [2]}, OrderedDict({1: [2]})),
        ({1: [2]}, {1: (2,)}),
    ],
)
def test_equal_values_of_other_form_are_encoded(before: Any, after: Any, encoded: Paths) -> None:
    encoder = CachedEncoder()

    texts = [encoder.encode(value, "x") for value in (before, after, after)]

    assert texts[0] != texts[1] == texts[2]
    assert encoded == ["x", "x"]


def test_change_in_place_is_noticed() -> None:
    encoder, tensor, array = CachedEncoder(), torch.zeros(2), np.zeros(2)
    before = encoder.encode([tensor, array], "x")
    tensor.data[0] = 1  # The version of the tensor stays the same, as in batch normalization.
    between = encoder.encode([tensor, array], "x")
    array[0] = 1

    assert len({before, between, encoder.encode([tensor, array], "x")}) == 3
