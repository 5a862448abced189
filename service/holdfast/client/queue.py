"""Quotas, and the queue of jobs that wait for room in them."""

from __future__ import annotations

from holdfast.api.schemas.jobs import JobOut
from holdfast.api.schemas.queue import PriorityIn, QueueOut, QuotaIn, QuotaOut
from holdfast.client.calls import (
    AsyncResource,
    Call,
    Resource,
    empty_call,
    endpoint,
    get,
    json_call,
    url_path,
)


class QueueCalls:
    """Calls about quotas and the queue.

    `scope` is service, project or user; the quota of the service has no name.
    """

    @endpoint
    def quotas(self) -> Call[list[QuotaOut]]:
        """List the quotas that the caller may see, with what is held of them."""
        return get(list[QuotaOut], "/v1/quotas")

    @endpoint
    def set_quota(self, scope: str, name: str, quota: QuotaIn) -> Call[QuotaOut]:
        """Set or replace a quota and return it; amounts that are not given are unlimited."""
        body = quota.model_dump(exclude_unset=True)
        return json_call(QuotaOut, "PUT", _quota_path(scope, name), json=body)

    @endpoint
    def remove_quota(self, scope: str, name: str) -> Call[None]:
        """Remove a quota."""
        return empty_call("DELETE", _quota_path(scope, name))

    @endpoint
    def waiting(self) -> Call[QueueOut]:
        """Return the waiting jobs in the order of admission."""
        return get(QueueOut, "/v1/queue")

    @endpoint
    def set_priority(self, job_id: str, priority: int) -> Call[JobOut]:
        """Change the priority of a job and return the job."""
        body = PriorityIn(priority=priority).model_dump()
        return json_call(JobOut, "PATCH", url_path("jobs", job_id, "priority"), json=body)


def _quota_path(scope: str, name: str) -> str:
    return url_path("quotas", scope) if scope == "service" else url_path("quotas", scope, name)


class QueueClient(QueueCalls, Resource):
    """Quotas, and the queue of waiting jobs."""


class AsyncQueueClient(QueueCalls, AsyncResource):
    """Quotas, and the queue of waiting jobs, for asynchronous programs."""
