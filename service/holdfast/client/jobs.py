"""Jobs: submit, find, control, wait, and read what they leave."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

import httpx2

from holdfast.api.schemas.billing import AttemptOut, BillOut, SentenceOut
from holdfast.api.schemas.checkpoints import CheckpointOut, CheckpointPage, OutputsOut
from holdfast.api.schemas.commands import CommandIn, CommandOut
from holdfast.api.schemas.jobs import (
    EventOut,
    JobOut,
    JobPage,
    LogChunk,
    LogOut,
    PointOut,
    RemovalOut,
    RenderOut,
    RenderTaskIn,
    TaskIn,
)
from holdfast.api.schemas.plans import JobPlanOut
from holdfast.api.schemas.resize import ResumePreviewOut
from holdfast.api.schemas.selections import JobActionIn, JobActionsOut
from holdfast.api.schemas.shells import (
    ShellIn,
    ShellReadOut,
    ShellWriteIn,
    StreamOut,
)
from holdfast.client.calls import (
    AsyncResource,
    Call,
    EventStream,
    Many,
    Pages,
    Resource,
    endpoint,
    get,
    json_call,
    paged,
    sequence,
    url_path,
)
from holdfast.errors import BadRequest, NotFound

POLL_S: Final = 2.0
"""Seconds between two looks at a job that is waited for.

A lower value makes more requests; a higher value notices its end later.
"""
MAX_PAGE: Final = 200
"""Jobs in one response of a search, the most that the service sends."""
_ID: Final = re.compile("j[0-9a-hjkmnp-tv-z]{12}")
"""The form of an id that the service has made; a job of this name is reached by its id only."""


@dataclass(frozen=True, slots=True)
class _LogPart:
    text: str
    next_offset: int


class JobFilters(TypedDict, total=False):
    """Which jobs are listed; a filter that is None or empty accepts all."""

    text: str | None
    """Part of a name or id."""
    statuses: Sequence[str]
    project: str | None
    owner: str | None
    tags: Sequence[str]
    """name:value, or a name alone."""
    since: str | None
    """First day of submission, such as 2026-03-01 or 30d."""
    until: str | None
    selector: str | None
    """Conditions on tags, such as team=nlp,stage!=dev."""
    launchers: Sequence[str]


class JobCalls:
    """Calls about jobs."""

    @endpoint
    def submit(self, task: TaskIn, idempotency_key: str | None = None) -> Call[JobOut]:
        """Submit a job and return it. The same key returns the same job; None makes a new one."""
        return _new("/v1/jobs", _body(task), idempotency_key)

    @endpoint
    def render(self, task: RenderTaskIn) -> Call[RenderOut]:
        """Render what would be launched, with the torchrun commands if requested."""
        return json_call(RenderOut, "POST", "/v1/render", json=_body(task))

    @endpoint
    def get(self, job_id: str) -> Call[JobOut]:
        """Return the current state of a job."""
        return get(JobOut, url_path("jobs", job_id))

    @endpoint
    def page(
        self, /, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[JobFilters]
    ) -> Call[JobPage]:
        """List one page of jobs, newest first, of one project or of all of the caller's."""
        params = {"limit": limit, "cursor": cursor, **_filter_params(filters)}
        return get(JobPage, "/v1/jobs", params)

    @sequence
    def find(self, /, **filters: Unpack[JobFilters]) -> Many[JobOut]:
        """Yield jobs, newest first, of one project or of all of the caller's projects."""
        params = {"limit": MAX_PAGE, **_filter_params(filters)}
        return paged(JobPage, "/v1/jobs", params, lambda page: page.jobs)

    @endpoint
    def act(self, asked: JobActionIn, idempotency_key: str | None = None) -> Call[JobActionsOut]:
        """Preview an action on several jobs, or carry it out; one result for each job."""
        body = asked.model_dump(mode="json", exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return json_call(JobActionsOut, "POST", "/v1/jobs/actions", json=body, headers=headers)

    @endpoint
    def outputs(self, job_id: str) -> Call[OutputsOut]:
        """Return the output files of all nodes of the newest attempt that has ended by itself."""
        return get(OutputsOut, url_path("jobs", job_id, "outputs"))

    @endpoint
    def output_part(self, job_id: str, number: int, epoch: int, part: int) -> Call[bytes]:
        """Return a part of an output file by its number; `epoch` is that of the list."""
        path = url_path("jobs", job_id, "outputs", str(number))
        params = {"epoch": epoch, "part": part}
        return Call(lambda answer: answer.content, "GET", path, {"params": params})

    @endpoint
    def execute(self, job_id: str, command: CommandIn) -> Call[CommandOut]:
        """Run a command on a node of a job, and return it; `command()` reads its output."""
        body = command.model_dump(mode="json")
        return json_call(CommandOut, "POST", url_path("jobs", job_id, "commands"), json=body)

    @endpoint
    def command(
        self, job_id: str, command_id: str, stdout_from: int = 0, stderr_from: int = 0
    ) -> Call[CommandOut]:
        """Return the state of a command, and its output from these bytes on."""
        params = {"stdout_from": stdout_from, "stderr_from": stderr_from}
        return get(CommandOut, url_path("jobs", job_id, "commands", command_id), params)

    @endpoint
    def open_shell(self, job_id: str, shell: ShellIn) -> Call[CommandOut]:
        """Open a shell on a node of a job; `write_shell()` and `read_shell()` use it."""
        body = shell.model_dump(mode="json")
        return json_call(CommandOut, "POST", url_path("jobs", job_id, "shells"), json=body)

    @endpoint
    def write_shell(self, job_id: str, shell_id: str, change: ShellWriteIn) -> Call[StreamOut]:
        """Write input to a shell, or end it; return how much input was taken of all."""
        body = change.model_dump(mode="json")
        path = url_path("jobs", job_id, "shells", shell_id, "write")
        return json_call(StreamOut, "POST", path, json=body)

    @endpoint
    def read_shell(self, job_id: str, shell_id: str, at: int = 0) -> Call[ShellReadOut]:
        """Wait up to 10 s for output of a shell after `at` bytes; earlier output is dropped."""
        path = url_path("jobs", job_id, "shells", shell_id, "read")
        return json_call(ShellReadOut, "POST", path, json={"at": at})

    @endpoint
    def cancel(self, job_id: str, reason: str = "cancelled on request") -> Call[JobOut]:
        """Request the cancellation of a job and return it."""
        return json_call(
            JobOut, "POST", url_path("jobs", job_id, "cancel"), json={"reason": reason}
        )

    @endpoint
    def pause(self, job_id: str, reason: str = "paused on request") -> Call[JobOut]:
        """Request that a job releases its nodes and waits; return the job."""
        return json_call(JobOut, "POST", url_path("jobs", job_id, "pause"), json={"reason": reason})

    @endpoint
    def resume(
        self,
        job_id: str,
        reason: str = "resumed on request",
        limits: Mapping[str, Any] | None = None,
        nodes: Mapping[str, Any] | None = None,
    ) -> Call[JobOut]:
        """Resume a paused job and return it. `limits`: the changed ones; None removes a limit.

        `nodes`: what changes about its nodes: nodes, gpus, infra, spot, force.
        """
        body = {"reason": reason, "limits": dict(limits or {}), **(nodes or {})}
        return json_call(JobOut, "POST", url_path("jobs", job_id, "resume"), json=body)

    @endpoint
    def preview_resume(
        self,
        job_id: str,
        limits: Mapping[str, Any] | None = None,
        nodes: Mapping[str, Any] | None = None,
    ) -> Call[ResumePreviewOut]:
        """Show what a resume with other nodes would change; nothing is done."""
        body = {"limits": dict(limits or {}), **(nodes or {})}
        path = url_path("jobs", job_id, "resume", "preview")
        return json_call(ResumePreviewOut, "POST", path, json=body)

    @endpoint
    def clone(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Call[JobOut]:
        """Submit a copy of a job with changes: name, env, secrets, limits, force."""
        return _new(url_path("jobs", job_id, "clone"), dict(changes or {}), idempotency_key)

    @endpoint
    def retry(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Call[JobOut]:
        """Submit a copy of an ended job that resumes from its newest checkpoint; as `clone`."""
        return _new(url_path("jobs", job_id, "retry"), dict(changes or {}), idempotency_key)

    @endpoint
    def set_limits(self, job_id: str, limits: Mapping[str, Any]) -> Call[JobOut]:
        """Change the limits of a job as in `resume` and return it."""
        return json_call(JobOut, "PATCH", url_path("jobs", job_id, "limits"), json=dict(limits))

    @endpoint
    def preempt(
        self,
        job_id: str,
        *,
        node: int | None = None,
        group: str | None = None,
        notice_s: float | None = None,
        force: bool = False,
    ) -> Call[JobOut]:
        """Request the preemption of a node, or of a node group, and return the job.

        `force` accepts the loss of steps that are not saved.
        """
        body: dict[str, Any] = {"node": node, "notice_s": notice_s}
        # Older services do not know these fields.
        body |= {"force": True} if force else {}
        body |= {"group": group} if group is not None else {}
        return json_call(JobOut, "POST", url_path("jobs", job_id, "preempt"), json=body)

    @endpoint
    def remove(self, job_id: str, *, checkpoints: bool = False) -> Call[RemovalOut]:
        """Remove an ended job, with its checkpoints if requested."""
        params = {"checkpoints": checkpoints}
        return json_call(RemovalOut, "DELETE", url_path("jobs", job_id), params=params)

    @endpoint
    def bill(self, job_id: str) -> Call[BillOut]:
        """Return the bill of a job: every millisecond and micro-dollar."""
        return get(BillOut, url_path("jobs", job_id, "bill"))

    @endpoint
    def attempts(self, job_id: str) -> Call[list[AttemptOut]]:
        """List the attempts of a job with their times and costs."""
        return get(list[AttemptOut], url_path("jobs", job_id, "attempts"))

    @endpoint
    def plan(self, job_id: str) -> Call[JobPlanOut]:
        """Return where a planned job runs, why, and how it is expected to end."""
        return get(JobPlanOut, url_path("jobs", job_id, "plan"))

    @endpoint
    def timeline(self, job_id: str) -> Call[list[SentenceOut]]:
        """Return the history of a job in sentences."""
        return get(list[SentenceOut], url_path("jobs", job_id, "story"))

    @endpoint
    def events(self, job_id: str) -> Call[list[EventOut]]:
        """Return the events of a job so far."""
        return get(list[EventOut], url_path("jobs", job_id, "events"))

    @sequence
    def follow_events(self, job_id: str) -> Many[EventOut]:
        """Yield past and future events of a job until it ends."""

        def read(data: Any) -> EventOut:
            return EventOut.model_validate(data, extra="ignore")

        return EventStream(read, url_path("jobs", job_id, "events", "stream"))

    @endpoint
    def checkpoint_page(
        self,
        job_id: str,
        *,
        states: Sequence[str] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> Call[CheckpointPage]:
        """List one page of a job's checkpoints, newest first, including failed saves."""
        params = {"limit": limit, "state": list(states), "cursor": cursor}
        return get(CheckpointPage, url_path("jobs", job_id, "checkpoints"), params)

    @sequence
    def checkpoints(self, job_id: str, *, states: Sequence[str] = ()) -> Many[CheckpointOut]:
        """Yield the checkpoints of a job, newest first, including failed saves."""
        path, params = url_path("jobs", job_id, "checkpoints"), {"state": list(states)}
        return paged(CheckpointPage, path, params, lambda page: page.checkpoints)

    @endpoint
    def metrics(self, job_id: str, limit: int = 100) -> Call[list[PointOut]]:
        """Return the newest points of a job, oldest first."""
        return get(list[PointOut], url_path("jobs", job_id, "metrics"), {"limit": limit})

    @endpoint
    def logs(self, job_id: str) -> Call[list[LogOut]]:
        """List the logs of a job."""
        return get(list[LogOut], url_path("jobs", job_id, "logs"))

    @sequence
    def log_text(
        self, job_id: str, choice: Mapping[str, int] | None = None, offset: int = 0
    ) -> Many[str]:
        """Yield a log up to its current end in pieces. `choice`: attempt, node, rank."""

        def read(answer: httpx2.Response) -> _LogPart:
            text = answer.content.decode(errors="replace")
            return _LogPart(text, int(answer.headers.get("X-Next-Offset", 0)))

        params = {**(choice or {}), "offset": offset}
        path = url_path("jobs", job_id, "logs", "text")
        return Pages(
            Call(read, "GET", path, {"params": params}),
            lambda part: [part.text] if part.text else [],
            lambda part: {"offset": part.next_offset} if part.text else None,
        )

    @sequence
    def follow_log(self, job_id: str, choice: Mapping[str, int] | None = None) -> Many[LogChunk]:
        """Yield a log over all attempts until the job ends. `choice`: attempt, node, rank."""

        def read(data: Any) -> LogChunk:
            return LogChunk.model_validate(data, extra="ignore")

        return EventStream(read, url_path("jobs", job_id, "logs", "stream"), choice or {})


class JobsClient(JobCalls, Resource):
    """The jobs of a service."""

    def wait(
        self,
        job_id: str,
        reached: Callable[[JobOut], bool] = lambda _: False,
        *,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
    ) -> JobOut:
        """Wait until a job has ended, or `reached` is true of it, and return it.

        Raises:
            TimeoutError: it has not after `timeout_s`; the job continues.
        """
        wait = _Wait(job_id, reached, timeout_s)
        while not wait.is_over(job := self.get(job_id)):
            time.sleep(poll_s)
        return job

    def resolve(self, text: str) -> str:
        """Return the id of a job: that of the live job with this name, else of the newest one.

        Raises:
            NotFound: no job has this id or name.
            BadRequest: several live jobs have this name.
        """
        if is_job_id(text):
            return text
        return _named(text, [job for job in self.find(text=text) if text in {job.id, job.name}])


class AsyncJobsClient(JobCalls, AsyncResource):
    """The jobs of a service, for asynchronous programs."""

    async def wait(
        self,
        job_id: str,
        reached: Callable[[JobOut], bool] = lambda _: False,
        *,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
    ) -> JobOut:
        """Wait until a job has ended, or `reached` is true of it, and return it.

        Raises:
            TimeoutError: it has not after `timeout_s`; the job continues.
        """
        wait = _Wait(job_id, reached, timeout_s)
        while not wait.is_over(job := await self.get(job_id)):  # noqa: ASYNC110 - the service sets no event
            await asyncio.sleep(poll_s)
        return job

    async def resolve(self, text: str) -> str:
        """Return the id of a job: that of the live job with this name, else of the newest one.

        Raises:
            NotFound: no job has this id or name.
            BadRequest: several live jobs have this name.
        """
        if is_job_id(text):
            return text
        found = [job async for job in self.find(text=text) if text in {job.id, job.name}]
        return _named(text, found)


def is_job_id(text: str) -> bool:
    """Whether a text has the form of an id that the service has made."""
    return _ID.fullmatch(text) is not None


class _Wait:
    """When a wait for a job is over."""

    def __init__(
        self, job_id: str, reached: Callable[[JobOut], bool], timeout_s: float | None
    ) -> None:
        self._job_id, self._reached, self._timeout_s = job_id, reached, timeout_s
        self._start = time.monotonic()

    def is_over(self, job: JobOut) -> bool:
        if job.ended_at is not None or self._reached(job):
            return True
        if self._timeout_s is not None and time.monotonic() - self._start >= self._timeout_s:
            raise TimeoutError(
                f"job {self._job_id} is {job.state} after {self._timeout_s:g} s; it continues"
            )
        return False


def _named(text: str, found: Sequence[JobOut]) -> str:
    """The id of the job that a person means by an id or a name."""
    if any(job.id == text for job in found):
        return text
    live = [job.id for job in found if job.ended_at is None]
    if len(live) > 1:
        raise BadRequest(f"{len(live)} live jobs are named {text}; use an id: {', '.join(live)}")
    if not found:
        raise NotFound(f"no job named {text}; holdfast ps lists jobs")
    return live[0] if live else found[0].id


def _filter_params(filters: JobFilters) -> dict[str, Any]:
    names = {"text": "find", "statuses": "status", "tags": "tag", "launchers": "launcher"}
    return {names.get(name, name): value for name, value in filters.items() if value}


def _new(path: str, body: dict[str, Any], idempotency_key: str | None) -> Call[JobOut]:
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
    return json_call(JobOut, "POST", path, json=body, headers=headers)


def _body(task: TaskIn) -> dict[str, Any]:
    """Return a job file as JSON without defaults, which an older service does not know."""
    body = task.model_dump(exclude_none=True)
    if task.limits:  # Here, None removes a limit.
        body["limits"] = task.limits.model_dump(exclude_unset=True)
    return body
