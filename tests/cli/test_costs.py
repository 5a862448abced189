"""`holdfast costs` shows what is beside the nodes, if there is anything, and what has no known price."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.api.schemas.billing import ChargeSumsOut, CostOut, CostsOut, PhasesOut
from holdfast.cli.billing import print_costs

NOTHING = PhasesOut(setup=0, restore=0, useful=0, stalled=0, lost=0, unmeasured=0)


def cost(key: str, paid: int, *, has_unpriced: bool = False, **charges: int) -> CostOut:
    charged = sum(charges.values())
    return CostOut(
        key=key,
        label=None,
        jobs=1,
        waiting_ms=0,
        ms=NOTHING,
        provisioned_ms=0,
        node_ms=0,
        micros=NOTHING,
        adjusted_micros=0,
        paid_micros=paid,
        on_demand_micros=paid,
        saved_micros=0,
        wasted_micros=0,
        goodput=None,
        goodput_with_waiting=None,
        simulated=False,
        is_price_estimate=False,
        charges=ChargeSumsOut(**charges),
        charged_micros=charged,
        total_micros=paid + charged,
        has_unpriced=has_unpriced,
    )


def printed(capsys: pytest.CaptureFixture[str], total: CostOut, *costs: CostOut) -> str:
    report: dict[str, Any] = {"since": None, "until": None, "left_out": 0, "pending": 0}
    prices = {"prices_source": "a list", "prices_as_of": "2026-06"}
    print_costs(CostsOut(by="project", costs=list(costs), total=total, **report, **prices))
    return capsys.readouterr().out


def test_table_has_what_is_beside_the_nodes_and_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = cost("nlp", 7_000_000, storage=1_250_000, disks=2_000_000)

    text = printed(capsys, one, one)

    header, row, *_ = text.splitlines()
    assert header.split("PAID")[1].split() == ["BESIDE", "TOTAL", "ON", "DEMAND", "SAVED"]
    assert row.split()[-5:-2] == ["$7.00", "$3.25", "$10.25"]
    assert (
        "beside the nodes: storage $1.25 · requests $0.0000 · egress $0.0000 · disks $2.00" in text
    )
    assert "limits and budgets count the nodes" in text
    assert "prices beside the nodes: a list, as of 2026-06" in text
    assert ">=" not in text


def test_missing_prices_are_stated_in_the_row_and_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = cost("nlp", 7_000_000, storage=1_250_000)
    unknown = cost("vision", 2_000_000, has_unpriced=True)
    total = cost("", 9_000_000, has_unpriced=True, storage=1_250_000)

    lines = printed(capsys, total, known, unknown).splitlines()

    assert ">=" not in next(line for line in lines if line.startswith("nlp"))
    assert ">= $2.00" in next(line for line in lines if line.startswith("vision"))
    assert ">= $1.25" in next(line for line in lines if line.startswith("all"))
    assert any("without what has no known price" in line for line in lines)


def test_own_machines_and_stores_add_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    one = cost("nlp", 7_000_000)

    text = printed(capsys, one, one)

    assert "BESIDE" not in text
    assert "beside the nodes" not in text
