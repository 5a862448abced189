"""Settings that alternate in blocks of one training are compared pair by pair."""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "bench/recovery/paired_blocks.py"
STEPS = 50
BLOCKS = 52


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paired_blocks", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def steps(
    bench: ModuleType, added: float, *, blocks: int = BLOCKS
) -> tuple[list[float], list[int]]:
    """Durations on a machine that gets slower, with 5 % of noise and some very long steps."""
    chance = random.Random(1)
    numbers = [block for block in range(blocks) for _ in range(STEPS)]
    values = [
        (1 + added * bench.is_on(block)) * (1 + block / 100) * chance.gauss(1, 0.05)
        for block in numbers
    ]
    return [value * (10 if chance.random() < 0.01 else 1) for value in values], numbers


def test_setting_comes_first_in_every_other_pair(bench: ModuleType) -> None:
    assert [bench.is_on(block) for block in range(8)] == [False, True, True, False] * 2


@pytest.mark.parametrize("added", [0.0, 0.02, -0.02])
def test_difference_is_found_on_a_machine_that_gets_slower(bench: ModuleType, added: float) -> None:
    values, numbers = steps(bench, added)

    found = bench.Difference.of(bench.blocks_of(values, numbers), statistics.median)

    assert found.pairs == BLOCKS / 2
    assert found.low <= added <= found.high
    assert found.high - found.low < 0.02


def test_blocks_after_a_warm_up_keep_their_setting(bench: ModuleType) -> None:
    blocks = bench.blocks_of([1.0, 2.0, 3.0, 4.0], [2, 2, 3, 4])

    assert [(block.is_on, list(block.values)) for block in blocks] == [
        (True, [1.0, 2.0]),
        (False, [3.0]),
        (False, [4.0]),
    ]
    ((off, on),) = bench.paired(blocks)
    assert (off.is_on, on.is_on) == (False, True)


def test_too_few_pairs_give_no_interval(bench: ModuleType) -> None:
    values, numbers = steps(bench, 0.0, blocks=11)

    with pytest.raises(ValueError, match="5 pairs of blocks are too few"):
        bench.Difference.of(bench.blocks_of(values, numbers), statistics.median)
