"""The subjects of the API, as attributes of both clients, and the service itself."""

from __future__ import annotations

from holdfast.api.schemas.service import HealthOut, LauncherOut
from holdfast.client.billing import AsyncBillingClient, BillingClient
from holdfast.client.calls import (
    AsyncCaller,
    AsyncResource,
    BlockingCaller,
    Call,
    Resource,
    endpoint,
    get,
    json_call,
    url_path,
)
from holdfast.client.diagnostics import AsyncDiagnosticsClient, DiagnosticsClient
from holdfast.client.identity import AsyncIdentityClient, IdentityClient
from holdfast.client.jobs import AsyncJobsClient, JobsClient
from holdfast.client.market import AsyncMarketClient, MarketClient
from holdfast.client.notifications import AsyncChannelsClient, ChannelsClient
from holdfast.client.queue import AsyncQueueClient, QueueClient
from holdfast.client.sweeps import AsyncSweepsClient, SweepsClient


class ServiceCalls:
    """Calls about the service itself."""

    @endpoint
    def health(self) -> Call[HealthOut]:
        """Return whether the service runs, and its version."""
        return get(HealthOut, "/healthz")

    @endpoint
    def ready(self) -> Call[HealthOut]:
        """Check that the service can use its database and reconciles its jobs."""
        return get(HealthOut, "/readyz")

    @endpoint
    def launchers(self) -> Call[list[LauncherOut]]:
        """Return the launchers of the service and their health."""
        return get(list[LauncherOut], "/v1/launchers")

    @endpoint
    def stop_launch(self, key: str) -> Call[LauncherOut]:
        """Stop a launch that is missing from the service's database; return its launcher."""
        return json_call(LauncherOut, "POST", url_path("launches", key, "stop"))


class HealthClient(ServiceCalls, Resource):
    """The service itself: its health and its launchers."""


class AsyncHealthClient(ServiceCalls, AsyncResource):
    """The service itself, for asynchronous programs."""


class ClientResources:
    """The subjects of the API, for blocking programs."""

    def __init__(self, client: BlockingCaller) -> None:
        self.jobs = JobsClient(client)
        """Submit, find, control and wait for jobs."""
        self.sweeps = SweepsClient(client)
        """Jobs of one file with several values of its parameters."""
        self.diagnostics = DiagnosticsClient(client)
        """Hints, comparisons, log search and metrics."""
        self.queue = QueueClient(client)
        """Quotas, and the queue of waiting jobs."""
        self.billing = BillingClient(client)
        """Costs of many jobs, and budgets."""
        self.market = MarketClient(client)
        """Prices, preemptions, and forecasts of job files."""
        self.identity = IdentityClient(client)
        """Users, projects, tokens and the audit log."""
        self.service = HealthClient(client)
        """Health and launchers."""
        self._caller = client

    def channels(self, project: str) -> ChannelsClient:
        """The notification channels of a project."""
        return ChannelsClient(self._caller, project)


class AsyncClientResources:
    """The subjects of the API, for asynchronous programs."""

    def __init__(self, client: AsyncCaller) -> None:
        self.jobs = AsyncJobsClient(client)
        self.sweeps = AsyncSweepsClient(client)
        self.diagnostics = AsyncDiagnosticsClient(client)
        self.queue = AsyncQueueClient(client)
        self.billing = AsyncBillingClient(client)
        self.market = AsyncMarketClient(client)
        self.identity = AsyncIdentityClient(client)
        self.service = AsyncHealthClient(client)
        self._caller = client

    def channels(self, project: str) -> AsyncChannelsClient:
        """The notification channels of a project."""
        return AsyncChannelsClient(self._caller, project)
