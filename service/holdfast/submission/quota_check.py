"""What a new job would hold of quotas, and whether they allow that much at once.

A job that fits into them by itself is accepted, and waits in the queue for room beside others.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.domain.events.values import Demand
from holdfast.domain.jobfile.resource_options import ResourceOption, uses_spot
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.pricing.estimates import NODE_MICROS
from holdfast.domain.queue.quotas import demand_of, refusal
from holdfast.errors import BadJobFile, ValidationIssue
from holdfast.market.option_prices import option_prices
from holdfast.ports import PriceCatalog
from holdfast.services import Services


def quota_demand(services: Services, spec: JobSpec, owner: str, project: str) -> Demand | None:
    """What a new job would hold; None without quotas, as it needs no admission then.

    Raises:
        BadJobFile: a quota allows less at once.
    """
    quotas = services.journal.queue.quotas()
    if not quotas:
        return None
    demand = priced_demand(spec, services.prices, services.clock.now())
    if no := refusal((each for each in quotas if each.applies_to(project, owner)), demand):
        raise BadJobFile((ValidationIssue("#/resources", f"the job {no}"),))
    return demand


def priced_demand(spec: JobSpec, prices: PriceCatalog, now: datetime) -> Demand:
    """What a job holds at most, at current prices.

    Nodes that are not rented count without a price. An unknown price is the job's `max_hourly_cost_usd`, else a high estimate.
    """
    if spec.engine is not Engine.SKYPILOT:
        return demand_of(spec)
    cap = spec.holdfast.limits.max_hourly_cost_micros
    buys = spec.holdfast.plan is not None
    total = 0
    for part in spec.parts:
        found = [_node_micros(each, prices, now, buys_on_demand=buys) for each in part.options]
        known = [micros for micros in found if micros is not None]
        if len(known) < len(found):
            known.append(NODE_MICROS if cap is None else cap // spec.num_nodes)
        total += part.num_nodes * max(known)
    return demand_of(spec, total)


def _node_micros(
    option: ResourceOption, prices: PriceCatalog, now: datetime, *, buys_on_demand: bool
) -> int | None:
    """The hourly price of one node: of spot, unless a plan may buy on-demand nodes as well."""
    found = option_prices(option, prices, now)
    if uses_spot(option) and not buys_on_demand:
        return found.spot_micros or found.on_demand_micros
    return found.on_demand_micros or found.spot_micros
