"""Client for notification channels and deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from holdfast.api.schemas.notifications import (
    ChannelIn,
    ChannelOut,
    DeliveryOut,
    DeliveryPage,
    NewChannelOut,
)
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class ChannelsClient:
    """Client for the channels of one project."""

    client: Client
    project: str

    def channels(self) -> list[ChannelOut]:
        """List all channels by name."""
        return self.client.get(list[ChannelOut], "GET", self._path())

    def add(self, channel: ChannelIn) -> NewChannelOut:
        """Create a channel and return it with the secret of a webhook."""
        body = channel.model_dump(mode="json")
        return self.client.get(NewChannelOut, "POST", self._path(), json=body)

    def remove(self, name: str) -> None:
        """Remove a channel."""
        self.client.send("DELETE", self._path(name))

    def rotate(self, name: str) -> NewChannelOut:
        """Replace the secret of a webhook; both are valid for a day."""
        return self.client.get(NewChannelOut, "POST", self._path(name, "rotate"))

    def test(self, name: str) -> DeliveryOut:
        """Send a test message and return its delivery."""
        return self.client.get(DeliveryOut, "POST", self._path(name, "test"))

    def delivery(self, name: str, delivery_id: str) -> DeliveryOut:
        """Return the state of one delivery."""
        return self.client.get(DeliveryOut, "GET", self._path(name, "deliveries", delivery_id))

    def deliveries(self, name: str, limit: int) -> list[DeliveryOut]:
        """List the newest deliveries, newest first."""
        path = self._path(name, "deliveries")
        page = self.client.get(DeliveryPage, "GET", path, params={"limit": limit})
        return page.deliveries

    def deliveries_of(self, job_id: str, limit: int) -> list[DeliveryOut]:
        """List the newest deliveries to targets in a job's file, newest first."""
        path = f"/v1/jobs/{quote(job_id, safe='')}/deliveries"
        return self.client.get(DeliveryPage, "GET", path, params={"limit": limit}).deliveries

    def _path(self, *steps: str) -> str:
        words = ("projects", self.project, "channels", *steps)
        return "/v1/" + "/".join(quote(word, safe="") for word in words)
