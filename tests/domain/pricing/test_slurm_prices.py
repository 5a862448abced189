"""Prices of partitions on Slurm, from a setting."""

from __future__ import annotations

import pytest
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import BadRequest
from holdfast.server.launchers import slurm_prices
from holdfast.settings import Settings

PRICES = SlurmPrices.parse(
    "hpc/preempt=0.50, hpc/Normal=2,hpc/normal/low=0", default_micros=1_000_000
)


@pytest.mark.parametrize(
    ("place", "micros"),
    [
        ("slurm/hpc/preempt", 500_000),
        ("slurm/HPC/normal", 2_000_000),
        ("slurm/hpc/normal/high", 2_000_000),
        ("slurm/hpc/normal/low", 0),
        ("slurm/*/normal", 2_000_000),
        ("slurm/lab/normal", None),
        ("slurm/hpc", None),
        ("slurm", None),
    ],
)
def test_most_specific_price_counts(place: str, micros: int | None) -> None:
    assert PRICES.find(place) == micros
    assert PRICES.micros_per_node_hour(place) == (1_000_000 if micros is None else micros)


def test_without_prices_the_default_counts() -> None:
    assert SlurmPrices.parse("", 7).micros_per_node_hour("slurm/hpc/gpu") == 7


def test_settings_name_prices_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SLURM_USD_PER_NODE_HOUR", "1.5")
    without = slurm_prices(Settings())
    monkeypatch.setenv("HOLDFAST_SLURM_PRICES", "hpc/preempt=0.50")
    found = slurm_prices(Settings())

    places = ("slurm/hpc/preempt", "slurm/hpc/normal")
    assert [without.micros_per_node_hour(place) for place in places] == [1_500_000, 1_500_000]
    assert [found.micros_per_node_hour(place) for place in places] == [500_000, 1_500_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preempt=1", "'preempt=1' is not a price of cluster/partition; write one such as hpc"),
        ("hpc/a/b/c=1", "is not a price of cluster/partition"),
        ("hpc/a", "'hpc/a' is not a price from 0 to 10000 dollars; write one such as hpc/preempt"),
        ("hpc/a=cheap", "is not a price from 0"),
        ("hpc/a=-1", "is not a price from 0"),
        ("hpc/a=nan", "is not a price from 0"),
        ("hpc/a=1e9", "is not a price from 0"),
        ("hpc/a=1,HPC/A=2", "HPC/A has two prices; remove one of them"),
    ],
)
def test_wrong_prices_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"^HOLDFAST_SLURM_PRICES: .*{message}"):
        SlurmPrices.parse(text, 0)
