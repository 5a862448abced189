"""Notification channels and deliveries."""

from __future__ import annotations

from holdfast.api.schemas.notifications import (
    ChannelIn,
    ChannelOut,
    DeliveryOut,
    DeliveryPage,
    NewChannelOut,
)
from holdfast.client.calls import (
    AsyncCaller,
    AsyncResource,
    BlockingCaller,
    Call,
    Many,
    Resource,
    empty_call,
    endpoint,
    get,
    json_call,
    paged,
    sequence,
    url_path,
)


class ChannelCalls:
    """Calls about the notification channels of a project."""

    project: str

    def _path(self, *steps: str) -> str:
        return url_path("projects", self.project, "channels", *steps)

    @endpoint
    def channels(self) -> Call[list[ChannelOut]]:
        """List all channels by name."""
        return get(list[ChannelOut], self._path())

    @endpoint
    def add(self, channel: ChannelIn) -> Call[NewChannelOut]:
        """Create a channel and return it with the secret of a webhook."""
        body = channel.model_dump(mode="json")
        return json_call(NewChannelOut, "POST", self._path(), json=body)

    @endpoint
    def remove(self, name: str) -> Call[None]:
        """Remove a channel."""
        return empty_call("DELETE", self._path(name))

    @endpoint
    def rotate(self, name: str) -> Call[NewChannelOut]:
        """Replace the secret of a webhook; both are valid for a day."""
        return json_call(NewChannelOut, "POST", self._path(name, "rotate"))

    @endpoint
    def test(self, name: str) -> Call[DeliveryOut]:
        """Send a test message and return its delivery."""
        return json_call(DeliveryOut, "POST", self._path(name, "test"))

    @endpoint
    def delivery(self, name: str, delivery_id: str) -> Call[DeliveryOut]:
        """Return the state of one delivery."""
        return get(DeliveryOut, self._path(name, "deliveries", delivery_id))

    @sequence
    def deliveries(self, name: str, limit: int = 50) -> Many[DeliveryOut]:
        """Yield deliveries of a channel, newest first, `limit` in one response."""
        path = self._path(name, "deliveries")
        return paged(DeliveryPage, path, {"limit": limit}, lambda page: page.deliveries)

    @sequence
    def job_deliveries(self, job_id: str, limit: int = 50) -> Many[DeliveryOut]:
        """Yield deliveries to targets in a job's file, newest first, `limit` in one response."""
        path = url_path("jobs", job_id, "deliveries")
        return paged(DeliveryPage, path, {"limit": limit}, lambda page: page.deliveries)


class ChannelsClient(ChannelCalls, Resource):
    """The notification channels of a project, and deliveries."""

    def __init__(self, client: BlockingCaller, project: str) -> None:
        super().__init__(client)
        self.project = project


class AsyncChannelsClient(ChannelCalls, AsyncResource):
    """The notification channels of a project, for asynchronous programs."""

    def __init__(self, client: AsyncCaller, project: str) -> None:
        super().__init__(client)
        self.project = project
