"""The charges of a job beside its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.api.schemas.billing import ChargeOut, ChargesOut
from holdfast.domain.billing.bill import Bill
from holdfast.domain.charges.charges import (
    UNKNOWN_STORE,
    Charges,
    KnownStore,
    compute_charges,
    store_url,
)
from holdfast.domain.events import Event
from holdfast.domain.jobs.job import Job
from holdfast.services import Services


def job_charges(services: Services, job: Job, account: Bill, facts: Sequence[Event]) -> Charges:
    """Return the charges of a job beside its bill, which was computed from the same events."""
    queue, store = services.retention_queue, store_url(facts)
    return compute_charges(
        account,
        facts,
        services.resource_prices,
        services.clock.now(),
        KnownStore(queue.requests(job.id), queue.place_of(store)) if store else UNKNOWN_STORE,
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
                quantity=line.units,
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
