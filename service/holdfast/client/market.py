"""Prices, preemptions, plans of job files, and observations of the market."""

from __future__ import annotations

from holdfast.api.schemas.plans import PlanIn, PlanPreviewOut
from holdfast.api.schemas.preemptions import (
    NoticesOut,
    PreemptionCostsOut,
    PreemptionHistoryOut,
    PreemptionsOut,
)
from holdfast.api.schemas.prices import (
    AdviceOut,
    CadenceOut,
    LossEstimateOut,
    PriceHistoryOut,
    PricesOut,
)
from holdfast.api.schemas.traces import ImportedOut, ObservedPlacesOut, RecordingIn, RecordingsOut
from holdfast.client.calls import AsyncResource, Call, Resource, endpoint, get, json_call


class MarketCalls:
    """Calls about prices, preemptions, plans and observations.

    `asked` of the preemptions: since, until, zone, type, project.
    """

    @endpoint
    def prices(
        self,
        *,
        accelerator: str | None = None,
        cloud: str | None = None,
        region: str | None = None,
        limit: int | None = None,
        refused: bool | None = None,
    ) -> Call[PricesOut]:
        """Return spot and on-demand prices of nodes; `refused` lists prices that are not used."""
        asked = {
            "accelerator": accelerator,
            "cloud": cloud,
            "region": region,
            "limit": limit,
            "refused": refused,
        }
        return get(PricesOut, "/v1/prices", asked)

    @endpoint
    def price_history(
        self, /, accelerator: str, **asked: str | int | None
    ) -> Call[PriceHistoryOut]:
        """Return changes of spot prices. `asked`: cloud, region, since, until, limit."""
        return get(PriceHistoryOut, "/v1/prices/history", {**asked, "accelerator": accelerator})

    @endpoint
    def preemptions(self, /, **asked: str | None) -> Call[PreemptionsOut]:
        """Return preemption rates. `asked`: by, hours, since, until, zone, type, project."""
        return get(PreemptionsOut, "/v1/preemptions", asked)

    @endpoint
    def preemption_history(self, /, **asked: str | int | None) -> Call[PreemptionHistoryOut]:
        """Return preemptions by day, and the newest ones. `asked`: also limit."""
        return get(PreemptionHistoryOut, "/v1/preemptions/history", asked)

    @endpoint
    def notices(self, /, **asked: str | None) -> Call[NoticesOut]:
        """Return the distribution of notice times before preemptions."""
        return get(NoticesOut, "/v1/preemptions/notices", asked)

    @endpoint
    def preemption_costs(self, /, limit: int, **asked: str | None) -> Call[PreemptionCostsOut]:
        """Return the jobs with the most expensive lost work."""
        return get(PreemptionCostsOut, "/v1/preemptions/jobs", {**asked, "limit": limit})

    @endpoint
    def forecast(self, plan: PlanIn) -> Call[PlanPreviewOut]:
        """Estimate the cost and the end of a job file; nothing is stored."""
        body = plan.model_dump(mode="json", exclude_none=True)
        return json_call(PlanPreviewOut, "POST", "/v1/plans", json=body)

    @endpoint
    def advice(
        self,
        params: str,
        *,
        hours_left: float | None = None,
        checkpoints: bool | None = None,
        critical: bool | None = None,
    ) -> Call[AdviceOut]:
        """List accelerators that fit a model of a size such as 7B, with their prices."""
        asked = {
            "params": params,
            "hours_left": hours_left,
            "checkpoints": checkpoints,
            "critical": critical,
        }
        return get(AdviceOut, "/v1/advice", asked)

    @endpoint
    def loss(
        self,
        at_hour: float,
        *,
        every_hours: float | None = None,
        usd_per_day: float | None = None,
        accelerator: str | None = None,
        nodes: int | None = None,
        spot: bool | None = None,
    ) -> Call[LossEstimateOut]:
        """Estimate what a failure costs, with and without checkpoints."""
        asked = {
            "at_hour": at_hour,
            "every_hours": every_hours,
            "usd_per_day": usd_per_day,
            "accelerator": accelerator,
            "nodes": nodes,
            "spot": spot,
        }
        return get(LossEstimateOut, "/v1/what-if/loss", asked)

    @endpoint
    def cadence(
        self, cost_s: float, between_failures_s: float, every_s: float | None = None
    ) -> Call[CadenceOut]:
        """Compute the best checkpoint interval, and the waste of `every_s`."""
        asked = {
            "cost_s": cost_s,
            "between_failures_s": between_failures_s,
            "every_s": every_s,
        }
        return get(CadenceOut, "/v1/what-if/cadence", asked)

    @endpoint
    def observed_places(self) -> Call[ObservedPlacesOut]:
        """List the places whose availability jobs or recordings have shown."""
        return get(ObservedPlacesOut, "/v1/traces")

    @endpoint
    def export_recordings(
        self, since: str | None = None, until: str | None = None
    ) -> Call[RecordingsOut]:
        """Return what jobs have shown of the availability of nodes."""
        return get(RecordingsOut, "/v1/traces/export", {"since": since, "until": until})

    @endpoint
    def import_recording(self, recording: RecordingIn) -> Call[ImportedOut]:
        """Import a recording of the availability of nodes, on which plans then rest."""
        body = recording.model_dump(mode="json")
        return json_call(ImportedOut, "POST", "/v1/traces", json=body)


class MarketClient(MarketCalls, Resource):
    """Prices, preemptions, plans of job files, and observations of the market."""


class AsyncMarketClient(MarketCalls, AsyncResource):
    """Prices, preemptions, plans and observations, for asynchronous programs."""
