"""Tools that read: jobs, their history, logs and costs, forecasts and prices."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from holdfast.api.schemas.jobs import LogOut
from holdfast.api.schemas.plans import PlanIn
from holdfast.errors import BadRequest, NotFound
from holdfast.mcp_server.job_folder import JobFolder
from holdfast.mcp_server.results import event_rows, summary, tool
from holdfast.sdk import AsyncClient

TAIL_BYTES: Final = 64 * 1024
"""Bytes that are read from the end of a log for its last lines.

A lower value returns fewer long lines; a higher value transfers more for a result that is cut.
"""

Job = Annotated[str, Field(description="Id or name of the job.")]
Since = Annotated[
    str | None, Field(description="First day in UTC, such as 2026-03-01, or an age such as 30d.")
]


class ReadTools:
    """Tools that change nothing."""

    def __init__(self, client: AsyncClient, folder: JobFolder) -> None:
        self._client = client
        self._folder = folder

    @tool
    async def list_jobs(
        self,
        *,
        statuses: Annotated[
            list[str] | None, Field(description="States, such as training or failed.")
        ] = None,
        text: Annotated[str | None, Field(description="Part of a name or id.")] = None,
        project: str | None = None,
        owner: str | None = None,
        since: Since = None,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> Any:
        """List jobs, newest first, with state, progress and cost."""
        page = await self._client.jobs.page(
            limit=limit,
            statuses=statuses or [],
            text=text,
            project=project,
            owner=owner,
            since=since,
        )
        return {"jobs": [summary(job) for job in page.jobs], "total": page.total}

    @tool
    async def show_job(self, job: Job) -> Any:
        """Show everything about the present state of a job."""
        return await self._client.jobs.get(await self._client.jobs.resolve(job))

    @tool
    async def why(self, job: Job) -> Any:
        """Explain a job: what has happened, what it costs, and probable problems with remedies."""
        job_id = await self._client.jobs.resolve(job)
        sentences = await self._client.jobs.timeline(job_id)
        found = await self._client.diagnostics.hints(job_id)
        return {"history": [sentence.text for sentence in sentences], "hints": found}

    @tool
    async def list_events(self, job: Job, limit: Annotated[int, Field(ge=1, le=500)] = 50) -> Any:
        """List the newest events of a job, oldest first."""
        events = await self._client.jobs.events(await self._client.jobs.resolve(job))
        return {"events": event_rows(events[-limit:]), "total": len(events)}

    @tool
    async def tail_log(
        self,
        job: Job,
        lines: Annotated[int, Field(ge=1, le=500)] = 100,
        attempt: Annotated[int | None, Field(description="Default: the newest.")] = None,
        node: Annotated[int | None, Field(description="Default: the first.")] = None,
        rank: Annotated[int | None, Field(description="A rank instead of a node.")] = None,
    ) -> Any:
        """Return the last lines of a log of a job."""
        job_id = await self._client.jobs.resolve(job)
        log = _chosen(await self._client.jobs.logs(job_id), attempt, node, rank)
        if log is None:
            raise NotFound(f"job {job_id} has no such log; it may not have started")
        choice = {"attempt": log.attempt, "node": log.node}
        choice |= {} if log.rank is None else {"rank": log.rank}
        offset = max(0, log.size_bytes - TAIL_BYTES)
        text = "".join(
            [piece async for piece in self._client.jobs.log_text(job_id, choice, offset)]
        )
        shown = text.splitlines()[1 if offset else 0 :][-lines:]  # The first one may be cut.
        return {**choice, "size_bytes": log.size_bytes, "lines": shown}

    @tool
    async def search_logs(
        self,
        job: Job,
        text: Annotated[str, Field(description="Text to search for in all logs of the job.")],
        is_regex: Annotated[bool, Field(description="Whether it is RE2 syntax.")] = False,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> Any:
        """Search all logs of a job, oldest attempt first."""
        job_id = await self._client.jobs.resolve(job)
        matches = []
        async for match in self._client.diagnostics.search(
            job_id, text, is_regex=is_regex, ignore_case=True
        ):
            matches.append(match.model_dump(include={"attempt", "node", "rank", "line", "text"}))
            if len(matches) == limit:
                break
        return {"matches": matches}

    @tool
    async def show_bill(self, job: Job) -> Any:
        """Show what a job cost, by attempt and phase, what was saved, and what preemptions cost."""
        return await self._client.jobs.bill(await self._client.jobs.resolve(job))

    @tool
    async def list_costs(
        self,
        by: Literal["user", "project", "zone", "day"] = "project",
        since: Since = "30d",
        project: str | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> Any:
        """Sum up the costs of all jobs."""
        return await self._client.billing.costs(by=by, since=since, project=project, limit=limit)

    @tool
    async def list_prices(
        self,
        accelerator: Annotated[str | None, Field(description="Such as A100:8.")] = None,
        cloud: str | None = None,
        region: str | None = None,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> Any:
        """List spot and on-demand prices of nodes, cheapest first, in micro-dollars per hour."""
        return await self._client.market.prices(
            accelerator=accelerator, cloud=cloud, region=region, limit=limit
        )

    @tool
    async def forecast(
        self,
        file: Annotated[str, Field(description="Path of a job file (.yaml).")],
        deadline: Annotated[str | None, Field(description="Such as 48h.")] = None,
        max_cost_usd: float | None = None,
        objective: Literal["cheapest", "fastest"] | None = None,
        work: Annotated[
            str | None, Field(description="Training time without interruptions, such as 31h.")
        ] = None,
    ) -> Any:
        """Estimate the cost and the end of a job file before it is submitted."""
        changes = {
            "deadline": deadline,
            "max_cost_usd": max_cost_usd,
            "objective": objective,
            "work": work,
        }
        task = self._folder.read(file).model_dump(exclude_unset=True)
        try:
            asked = PlanIn.model_validate({**task, **changes})
        except ValidationError as error:
            flaw = error.errors(include_input=False)[0]
            raise BadRequest(f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}") from error
        return await self._client.market.forecast(asked)


def _chosen(
    logs: list[LogOut], attempt: int | None, node: int | None, rank: int | None
) -> LogOut | None:
    """The log that a model means: of the newest attempt, and of its first node by default."""
    fitting = [
        log
        for log in logs
        if attempt in {None, log.attempt} and node in {None, log.node} and rank == log.rank
    ]
    return max(fitting, key=lambda log: (log.attempt, -log.node), default=None)


READ_TOOLS: Final = (
    "list_jobs",
    "show_job",
    "why",
    "list_events",
    "tail_log",
    "search_logs",
    "show_bill",
    "list_costs",
    "list_prices",
    "forecast",
)
"""Names of the methods that are tools, in the order of the list that a model sees."""
