"""What the market has taken, in other sums than by place, and what it has asked for nodes; beside `Client` itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.api.preemption_schemas import NoticesOut, TollsOut
from holdfast.api.price_schemas import PriceHistoryOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class MarketClient:
    """Losses by their warning, and by the job that paid for them (`asked`: since, until, zone, type, project); prices over time."""

    client: Client

    def notices(self, **asked: str | None) -> NoticesOut:
        """How much warning there was before nodes were taken."""
        return self.client.ask(NoticesOut, "GET", "/v1/preemptions/notices", params=_said(asked))

    def worst(self, limit: int, **asked: str | None) -> TollsOut:
        """The jobs whose lost work has cost the most."""
        params = {**_said(asked), "limit": limit}
        return self.client.ask(TollsOut, "GET", "/v1/preemptions/jobs", params=params)

    def price_history(self, accelerator: str, **asked: str | int | None) -> PriceHistoryOut:
        """How spot prices have changed. `asked`: cloud, region, since, until, limit."""
        params = {**_said(asked), "accelerator": accelerator}
        return self.client.ask(PriceHistoryOut, "GET", "/v1/prices/history", params=params)


def _said(asked: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {word: value for word, value in asked.items() if value is not None}
