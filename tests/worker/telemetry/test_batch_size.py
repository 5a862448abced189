"""Samples and tokens by the shape of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from holdfast_worker.telemetry.batch_size import batch_size, check_token_count

IDS = torch.zeros(4, 128, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (IDS, 4, 512),
        ((IDS, IDS), 4, 512),
        ({"mask": torch.ones(9, 9), "input_ids": IDS}, 4, 512),
        ({"images": torch.zeros(8, 3, 32, 32), "labels": torch.zeros(8)}, 8, 0),
        ([torch.tensor(1.0), [torch.zeros(2, 5)]], 2, 0),
        (torch.zeros(2, 5, dtype=torch.uint8), 2, 0),
        (torch.zeros(2, 5, dtype=torch.bool), 2, 0),
        ("text", 0, 0),
        ({}, 0, 0),
    ],
)
def test_shape_shows_samples_and_tokens(batch: Any, samples: int, tokens: int) -> None:
    assert batch_size(batch) == (samples, tokens)


def test_count_of_the_script_precedes_the_shape() -> None:
    assert batch_size(IDS, 100) == (4, 100)
    assert batch_size(IDS, 0) == (4, 0)
    assert batch_size(IDS, lambda ids: ids.numel() - 12) == (4, 500)


@pytest.mark.parametrize("wrong", [-1, 1.5, "100", True])
def test_wrong_token_count_names_the_argument(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"steps\(tokens=.*\): give the tokens of a batch"):
        check_token_count(wrong)


def test_function_without_a_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"steps\(tokens=...\) returned None; return the number"):
        batch_size(IDS, lambda _: None)  # type: ignore[arg-type,return-value]
