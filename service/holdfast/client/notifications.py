"""Notifications of a service as a Python object, beside its jobs in `holdfast.client`."""

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
    """The channels of one project."""

    client: Client
    project: str

    def all(self) -> list[ChannelOut]:
        """All of them, by name."""
        return self.client.get(list[ChannelOut], "GET", self._path())

    def add(self, channel: ChannelIn) -> NewChannelOut:
        """The new channel, with the secret of a webhook."""
        body = channel.model_dump(mode="json")
        return self.client.get(NewChannelOut, "POST", self._path(), json=body)

    def remove(self, name: str) -> None:
        """Send nothing there any more."""
        self.client.send("DELETE", self._path(name))

    def rotate(self, name: str) -> NewChannelOut:
        """A webhook with another secret; for a day, both hold."""
        return self.client.get(NewChannelOut, "POST", self._path(name, "rotate"))

    def test(self, name: str) -> DeliveryOut:
        """A message to try it with, as it was made."""
        return self.client.get(DeliveryOut, "POST", self._path(name, "test"))

    def delivery(self, name: str, delivery_id: str) -> DeliveryOut:
        """What became of one message."""
        return self.client.get(DeliveryOut, "GET", self._path(name, "deliveries", delivery_id))

    def deliveries(self, name: str, limit: int) -> list[DeliveryOut]:
        """The newest messages, newest first."""
        path = self._path(name, "deliveries")
        page = self.client.get(DeliveryPage, "GET", path, params={"limit": limit})
        return page.deliveries

    def deliveries_of(self, job_id: str, limit: int) -> list[DeliveryOut]:
        """The newest messages to places that a job's file names, newest first."""
        path = f"/v1/jobs/{quote(job_id, safe='')}/deliveries"
        return self.client.get(DeliveryPage, "GET", path, params={"limit": limit}).deliveries

    def _path(self, *steps: str) -> str:
        words = ("projects", self.project, "channels", *steps)
        return "/v1/" + "/".join(quote(word, safe="") for word in words)
