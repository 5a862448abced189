"""Rows of `ledger_shares`: the nodes of a bill, and what a job costs beside them.

Stored checkpoints cost on after the end of a job. A row would be wrong the next day, so that `ledgers` has what is needed to compute
their amount at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, select, update

from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.phases import Phase
from holdfast.domain.charges.charge_shares import ChargeShare, ChargeShares, KeptStorage, ShareKey
from holdfast.domain.charges.charges import Category
from holdfast.store.billing.live_bills import AllocationRow
from holdfast.store.tables.billing import ledger_shares, ledgers

COLUMNS: Final = {category: f"{category}_micros" for category in Category}
CHARGES: Final = tuple(COLUMNS.values())
"""Columns of amounts beside the nodes."""
KEY: Final = ("job_id", "attempt", "zone", "day")
FLAGS: Final = ("simulated", "is_price_estimate", "has_unpriced", "has_nodes")


def node_row(job_id: str, share: CostAllocation) -> dict[str, Any]:
    """A row of the nodes."""
    return {
        "job_id": job_id,
        "attempt": share.attempt,
        "zone": share.zone,
        "day": share.day.isoformat(),
        "waiting_ms": share.waiting_ms,
        **{f"{phase}_ms": getattr(share.ms, phase) for phase in Phase},
        "node_ms": share.node_ms,
        **{f"{phase}_micros": getattr(share.micros, phase) for phase in Phase},
        "adjusted_micros": share.adjusted_micros,
        "on_demand_micros": share.on_demand_micros,
        "simulated": int(share.simulated),
        "is_price_estimate": int(share.is_price_estimate),
        **dict.fromkeys(CHARGES, 0),
        "has_unpriced": 0,
        "has_nodes": 1,
    }


_NO_NODES: Final = {
    **node_row("", CostAllocation(attempt=0, zone="", day=date.min)),
    "has_nodes": 0,
}


def charge_rows(job_id: str, shares: ChargeShares) -> Iterator[AllocationRow]:
    """Rows of charges, with allocations that contain no nodes."""
    for (attempt, zone, day), share in shares.items():
        row = _NO_NODES.copy()
        row["job_id"], row["attempt"] = job_id, attempt
        row["zone"], row["day"] = zone, day.isoformat()
        for category, micros in share.micros.items():
            row[COLUMNS[category]] = micros
        row["has_unpriced"] = int(share.has_unpriced)
        yield CostAllocation(attempt=attempt, zone=zone, day=day), row


def ledger_rows(rows: Iterable[AllocationRow]) -> list[dict[str, Any]]:
    """Rows for the table, which has one for each attempt, zone and day."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, row in rows:
        key = tuple(row[name] for name in KEY)
        if (known := merged.get(key)) is None:
            merged[key] = dict(row)
            continue
        for name, value in row.items():
            if name in FLAGS:
                known[name] = max(known[name], value)
            elif name not in KEY:
                known[name] += value
    return list(merged.values())


def kept_columns(kept: KeptStorage) -> dict[str, int | None]:
    """Columns of `ledgers` for stored checkpoints."""
    return {
        "kept_since_ms": kept.since_ms,
        "kept_bytes": kept.kept_bytes if kept.costs_more else 0,
        "kept_rest": kept.rest,
        "kept_unit_micros": kept.unit_micros,
    }


def kept_storage(row: Row[Any]) -> KeptStorage:
    """Stored checkpoints from a row of `ledgers`."""
    return KeptStorage(row.kept_since_ms, row.kept_bytes, row.kept_unit_micros, row.kept_rest)


def end_kept_storage(connection: Connection, job_id: str, until_ms: int) -> None:
    """Write what stored checkpoints of a closed job cost until a time, and end it there."""
    mine = ledgers.c.job_id == job_id
    row = connection.execute(select(ledgers).where(mine)).first()
    if row is None or not row.kept_bytes:
        return
    shares: defaultdict[ShareKey, ChargeShare] = defaultdict(ChargeShare)
    kept_storage(row).add_to(shares, until_ms)
    table = ledger_shares.c
    for (attempt, zone, day), share in shares.items():
        values: dict[str, Any] = {
            "storage_micros": table.storage_micros + share.micros[Category.STORAGE]
        }
        if share.has_unpriced:
            values["has_unpriced"] = 1
        key = table.attempt == attempt, table.zone == zone, table.day == day.isoformat()
        changed = update(ledger_shares).where(table.job_id == job_id, *key).values(values)
        if not connection.execute(changed).rowcount:
            [(_, new)] = charge_rows(job_id, {ShareKey(attempt, zone, day): share})
            connection.execute(insert(ledger_shares).values(**new))
    # Cached sums are read again.
    newest = select(func.max(ledgers.c.number)).scalar_subquery()
    connection.execute(update(ledgers).where(mine).values(kept_bytes=0, number=newest + 1))
