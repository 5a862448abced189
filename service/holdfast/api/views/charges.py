"""The charges of a job beside its nodes, as responses and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.api.csv_export import text, usd
from holdfast.api.schemas.billing import ChargeOut, ChargesOut
from holdfast.domain.billing.bill import Bill
from holdfast.domain.charges.charges import Charge, Charges, compute_charges
from holdfast.domain.events import Event
from holdfast.domain.jobs.job import Job
from holdfast.services import Services

CHARGE_COLUMNS: Final = ("category", "item", "place", "quantity", "unit", "unit_usd", "amount_usd")
"""The last columns of a bill as a table."""


def job_charges(services: Services, job: Job, account: Bill, facts: Iterable[Event]) -> Charges:
    """Return the charges of a job beside its bill, which was computed from the same events."""
    return compute_charges(
        account,
        facts,
        services.resource_prices,
        services.clock.now(),
        services.retention_queue.requests(job.id),
    )


def charges_view(charges: Charges) -> ChargesOut:
    """Convert charges."""
    return ChargesOut(
        until=charges.until,
        store_place=charges.store_place or None,
        lines=[
            ChargeOut(
                category=line.category,
                item=line.item,
                place=line.place or None,
                quantity=_quantity(line),
                unit=line.unit,
                unit_micros=line.unit_micros,
                micros=None if line.unit_micros is None else line.micros,
            )
            for line in charges.lines
        ],
        micros=charges.micros,
        has_unpriced=charges.has_unpriced,
        prices_source=charges.prices_source,
        prices_as_of=charges.prices_as_of,
        warning=charges.warning or None,
    )


def charge_cells(charges: Charges | None) -> Iterator[Sequence[str]]:
    """The cells of `CHARGE_COLUMNS` of each line; an amount is empty if no price is known."""
    for line in charges.lines if charges else ():
        known = line.unit_micros is not None
        yield (
            *(line.category, text(line.item), text(line.place), _quantity(line), line.unit),
            *(usd(line.unit_micros or 0) if known else "", usd(line.micros) if known else ""),
        )


def _quantity(line: Charge) -> str:
    whole, rest = divmod(line.millionths, 1_000_000)
    return f"{whole}.{rest:06d}"
