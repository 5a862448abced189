"""Client for quotas, the queue and priorities."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from holdfast.api.schemas.jobs import JobOut
from holdfast.api.schemas.queue import PriorityIn, QueueOut, QuotaIn, QuotaOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class QueueClient:
    """Client for quotas and for the queue of jobs that wait for room in them.

    `scope` is service, project or user; the service needs no name.
    """

    client: Client

    def quotas(self) -> list[QuotaOut]:
        """List the quotas that the caller may see, with what is held of them."""
        return self.client.get(list[QuotaOut], "GET", "/v1/quotas")

    def set_quota(self, scope: str, name: str, quota: QuotaIn) -> QuotaOut:
        """Set or replace a quota and return it; amounts that are not given are unlimited."""
        body = quota.model_dump(exclude_unset=True)
        return self.client.get(QuotaOut, "PUT", _path(scope, name), json=body)

    def remove_quota(self, scope: str, name: str) -> None:
        """Remove a quota."""
        self.client.send("DELETE", _path(scope, name))

    def queue(self) -> QueueOut:
        """Return the waiting jobs in the order of admission."""
        return self.client.get(QueueOut, "GET", "/v1/queue")

    def set_priority(self, job_id: str, priority: int) -> JobOut:
        """Change the priority of a job and return the job."""
        body = PriorityIn(priority=priority).model_dump()
        return self.client.get(JobOut, "PATCH", f"/v1/jobs/{job_id}/priority", json=body)


def _path(scope: str, name: str) -> str:
    """The address of a quota.

    That of the service has no name.
    """
    whose = "" if scope == "service" else f"/{quote(name, safe='')}"
    return f"/v1/quotas/{scope}{whose}"


__all__ = ["QueueClient"]
