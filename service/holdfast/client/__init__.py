"""The HTTP client of the API, used by the command line."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import httpx2
from holdfast_worker.protocol.release import DISTRIBUTION, HEADER, difference, user_agent
from pydantic import TypeAdapter, ValidationError

from holdfast import __version__
from holdfast.addresses import is_here
from holdfast.api.schemas.billing import BillOut, CostsOut, SentenceOut
from holdfast.api.schemas.checkpoints import CheckpointPage
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
from holdfast.api.schemas.preemptions import PreemptionsOut
from holdfast.api.schemas.prices import PricesOut
from holdfast.api.schemas.selections import JobActionIn, JobActionsOut
from holdfast.api.schemas.service import HealthOut, LauncherOut, Problem
from holdfast.client.credentials import Credentials
from holdfast.client.event_stream import StreamMessage, messages
from holdfast.errors import HoldfastError, Unavailable
from holdfast.settings import Settings

_EXIT_BY_STATUS: Final = {
    400: 2,
    413: 2,
    422: 2,
    401: 5,
    403: 5,
    404: 4,
    409: 6,
    412: 6,
    429: 3,
    503: 3,
}
_PROXY_ERRORS: Final = frozenset({413, 429, 502, 503, 504})
"""Statuses with which a proxy in front of a service refuses a request."""
TIMEOUT_S: Final = 30.0
"""Timeout of one response in seconds.

A lower value fails on a busy service; a higher value detects a dead one later.
"""
RECONNECT_S: Final = (0.5, 1, 2, 5, 5, 5, 5, 5)
"""Seconds before each reconnection of a broken stream; after the last one the service counts as unreachable."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class ServiceUnreachable(Unavailable):
    """The service does not respond; start it with `holdfast serve`, or set HOLDFAST_URL."""


class NoAnswer(ServiceUnreachable):
    """No server responds at the address of the service."""


class Refused(HoldfastError):
    """The service refused the request."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.exit_code = _EXIT_BY_STATUS.get(problem.status, 1)  # type: ignore[misc]  # one class, many answers
        super().__init__(problem.detail)


class Client:
    """A connection to a service. Use it as a context manager."""

    user_agent: ClassVar[str] = user_agent("holdfast-client")

    def __init__(
        self,
        url: str,
        token: str | None = None,
        transport: httpx2.BaseTransport | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        headers = {"User-Agent": self.user_agent} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        if not url.startswith(("http://", "https://")):
            raise ServiceUnreachable(
                f"HOLDFAST_URL must begin with http:// or https://; it is {url!r}"
            )
        self._url = url
        self._service = ""  # The service's version, from its newest response.
        try:
            self._http = httpx2.Client(
                base_url=url, headers=headers, timeout=timeout_s, transport=transport
            )
        except httpx2.InvalidURL as error:
            raise ServiceUnreachable(
                f"HOLDFAST_URL={url!r} is not a valid address: {error}"
            ) from error

    @classmethod
    def from_settings(cls, settings: Settings, timeout_s: float = TIMEOUT_S) -> Client:
        """Create a client from the settings, else from the saved login.

        Without a token in either, it reads the token from the home directory of a local service.
        """
        login = Credentials.read(settings.login_file)
        url = settings.url
        if login.url and "url" not in settings.model_fields_set:
            url = login.url
        token = settings.token.get_secret_value() if settings.token else None
        if token is None and login.url == url:
            token = login.token
        if token is None and is_here(url):
            try:
                token = settings.token_file.read_text().strip()
            except OSError:
                token = None  # Another user's service, or none yet: loopback also works without a token.
        return cls(url, token, timeout_s=timeout_s)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        """Return the response of a route that has no method here."""
        return self._request(kind, method, path, **request)

    def send(self, method: str, path: str, **request: Any) -> None:
        """Send a request whose response has no content."""
        self._send(method, path, **request)

    def is_healthy(self) -> bool:
        """Whether the service responds."""
        try:
            return self._request(HealthOut, "GET", "/healthz").status == "ok"
        except HoldfastError:
            return False

    def ready(self) -> HealthOut:
        """Check that the service can use its database and reconciles its jobs."""
        return self._request(HealthOut, "GET", "/readyz")

    def launchers(self) -> list[LauncherOut]:
        """Return the launchers of the service and their health."""
        return self._request(list[LauncherOut], "GET", "/v1/launchers")

    def prices(self, **asked: str | int | bool | None) -> PricesOut:
        """Return node prices. `asked`: accelerator, cloud, region, limit, refused."""
        params = {word: value for word, value in asked.items() if value is not None}
        return self._request(PricesOut, "GET", "/v1/prices", params=params)

    def render(self, task: RenderTaskIn) -> RenderOut:
        """Render what would be launched, with the torchrun commands if requested."""
        return self._request(RenderOut, "POST", "/v1/render", json=_body(task))

    def submit(self, task: TaskIn, idempotency_key: str) -> JobOut:
        """Submit a job. The same key returns the same job."""
        return self._new("/v1/jobs", _body(task), idempotency_key)

    def jobs(
        self,
        *,
        statuses: list[str],
        limit: int,
        cursor: str | None = None,
        project: str | None = None,
        find: str | None = None,
        owner: str | None = None,
        tags: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        selector: str | None = None,
        launchers: Sequence[str] = (),
    ) -> JobPage:
        """List one page of jobs, newest first, of one project or of all of the caller's projects.

        `find`: part of a name or id; `tags`: name:value, or a name alone; `since`, `until`: days of submission, such as
        2026-03-01 or 30d.
        """
        asked = {
            "find": find,
            "project": project,
            "owner": owner,
            "cursor": cursor,
            "since": since,
            "until": until,
            "selector": selector,
        }
        params: dict[str, Any] = {"limit": limit, "status": statuses, "tag": list(tags)}
        params |= {"launcher": list(launchers)} if launchers else {}
        params |= {word: value for word, value in asked.items() if value}
        return self._request(JobPage, "GET", "/v1/jobs", params=params)

    def act(self, asked: JobActionIn, idempotency_key: str | None = None) -> JobActionsOut:
        """Preview an action on several jobs, or carry it out; one result for each job."""
        body = asked.model_dump(mode="json", exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._request(JobActionsOut, "POST", "/v1/jobs/actions", json=body, headers=headers)

    def job(self, job_id: str) -> JobOut:
        """Return the current state of a job."""
        return self._request(JobOut, "GET", f"/v1/jobs/{job_id}")

    def cancel(self, job_id: str, reason: str) -> JobOut:
        """Request the cancellation of a job and return it."""
        return self._request(JobOut, "POST", f"/v1/jobs/{job_id}/cancel", json={"reason": reason})

    def pause(self, job_id: str, reason: str) -> JobOut:
        """Request that a job releases its nodes and waits; return the job."""
        return self._request(JobOut, "POST", f"/v1/jobs/{job_id}/pause", json={"reason": reason})

    def resume(self, job_id: str, reason: str, limits: Mapping[str, Any]) -> JobOut:
        """Resume a paused job and return it. `limits`: the changed ones; None removes a limit."""
        body = {"reason": reason, "limits": dict(limits)}
        return self._request(JobOut, "POST", f"/v1/jobs/{job_id}/resume", json=body)

    def clone(self, job_id: str, changes: Mapping[str, Any], idempotency_key: str) -> JobOut:
        """Submit a copy of a job with `changes`. The same key returns the same job."""
        return self._new(f"/v1/jobs/{job_id}/clone", dict(changes), idempotency_key)

    def retry(self, job_id: str, changes: Mapping[str, Any], idempotency_key: str) -> JobOut:
        """Submit a copy of an ended job that resumes from its newest checkpoint.

        Otherwise like `clone`.
        """
        return self._new(f"/v1/jobs/{job_id}/retry", dict(changes), idempotency_key)

    def limits(self, job_id: str, limits: Mapping[str, Any]) -> JobOut:
        """Change the limits of a job as in `resume` and return it."""
        return self._request(JobOut, "PATCH", f"/v1/jobs/{job_id}/limits", json=dict(limits))

    def preempt(
        self,
        job_id: str,
        *,
        node: int | None,
        group: str | None = None,
        notice_s: float | None,
        force: bool = False,
    ) -> JobOut:
        """Request the preemption of a node, or of a node group, and return the job.

        `force` accepts the loss of steps that are not saved.
        """
        body: dict[str, Any] = {"node": node, "notice_s": notice_s}
        # Older services do not know these fields.
        body |= {"force": True} if force else {}
        body |= {"group": group} if group is not None else {}
        return self._request(JobOut, "POST", f"/v1/jobs/{job_id}/preempt", json=body)

    def bill(self, job_id: str) -> BillOut:
        """Return the bill of a job: every millisecond and micro-dollar."""
        return self._request(BillOut, "GET", f"/v1/jobs/{job_id}/bill")

    def costs(self, **asked: str | int | None) -> CostsOut:
        """Return total costs of jobs. `asked`: by, each, since, until, project, limit."""
        params = {word: value for word, value in asked.items() if value is not None}
        return self._request(CostsOut, "GET", "/v1/costs", params=params)

    def preemptions(self, **asked: str | None) -> PreemptionsOut:
        """Return preemption rates. `asked`: by, since, until, zone, type, project."""
        params = {word: value for word, value in asked.items() if value is not None}
        return self._request(PreemptionsOut, "GET", "/v1/preemptions", params=params)

    def timeline(self, job_id: str) -> list[SentenceOut]:
        """Return the history of a job in sentences."""
        return self._request(list[SentenceOut], "GET", f"/v1/jobs/{job_id}/story")

    def get_csv(self, path: str, **asked: str | int | None) -> str:
        """Download a table of the API as CSV."""
        params = {word: value for word, value in asked.items() if value is not None}
        headers = {"Accept": "text/csv"}
        return self._send("GET", path, params=params, headers=headers).text

    def fetch(self, path: str) -> bytes:
        """Download a file from the API."""
        return self._send("GET", path).content

    def events(self, job_id: str) -> list[EventOut]:
        """Return the events of a job so far."""
        return self._request(list[EventOut], "GET", f"/v1/jobs/{job_id}/events")

    def checkpoints(
        self,
        job_id: str,
        *,
        states: Sequence[str] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> CheckpointPage:
        """List one page of a job's checkpoints, newest first, including failed saves."""
        params: dict[str, Any] = {"limit": limit, "state": list(states)}
        if cursor:
            params["cursor"] = cursor
        return self._request(CheckpointPage, "GET", f"/v1/jobs/{job_id}/checkpoints", params=params)

    def metrics(self, job_id: str, limit: int) -> list[PointOut]:
        """Return the newest points of a job, oldest first."""
        return self._request(
            list[PointOut], "GET", f"/v1/jobs/{job_id}/metrics", params={"limit": limit}
        )

    def logs(self, job_id: str) -> list[LogOut]:
        """List the logs of a job."""
        return self._request(list[LogOut], "GET", f"/v1/jobs/{job_id}/logs")

    def log_text(self, job_id: str, choice: Mapping[str, int]) -> Iterator[str]:
        """Yield a log from its start to its current end in pieces. `choice`: attempt, node, rank."""
        offset = 0
        while True:
            answer = self._send(
                "GET", f"/v1/jobs/{job_id}/logs/text", params={**choice, "offset": offset}
            )
            if not answer.content:
                return
            yield answer.content.decode(errors="replace")
            offset = int(answer.headers["X-Next-Offset"])

    def follow_events(self, job_id: str) -> Iterator[EventOut]:
        """Yield past and future events of a job until it ends."""
        for message in self._follow(f"/v1/jobs/{job_id}/events/stream", {}):
            yield EventOut.model_validate(message.data, extra="ignore")

    def follow_log(self, job_id: str, choice: Mapping[str, int]) -> Iterator[LogChunk]:
        """Yield a log over all attempts until the job ends. `choice`: attempt, node, rank."""
        for message in self._follow(f"/v1/jobs/{job_id}/logs/stream", choice):
            yield LogChunk.model_validate(message.data, extra="ignore")

    def remove(self, job_id: str, *, checkpoints: bool) -> RemovalOut:
        """Remove an ended job, with its checkpoints if requested."""
        words = {"checkpoints": checkpoints}
        return self._request(RemovalOut, "DELETE", f"/v1/jobs/{job_id}", params=words)

    def _follow(self, path: str, params: Mapping[str, int]) -> Iterator[StreamMessage]:
        """Yield the messages of a stream until its `end`, reconnecting where it broke."""
        place: str | None = None
        pauses = iter(RECONNECT_S)
        while True:
            headers = {"Last-Event-ID": place} if place else {}
            try:
                with self._http.stream(
                    "GET", path, params=params, headers=headers, timeout=_STREAM_TIMEOUT
                ) as answer:
                    if answer.is_error:
                        answer.read()
                        problem = _problem(answer)
                        if problem is None:
                            raise ServiceUnreachable(self._foreign_error(answer, path))
                        raise Refused(problem)
                    for message in messages(answer.iter_lines()):
                        if message.event == "end":
                            return
                        place, pauses = message.id, iter(RECONNECT_S)
                        yield message
            except httpx2.TransportError as error:
                broken: str = str(error) or type(error).__name__
            else:
                broken = "the stream ended early"
            pause = next(pauses, None)
            if pause is None:
                raise ServiceUnreachable(
                    f"{self._url} no longer responds ({broken}); the job continues"
                )
            time.sleep(pause)

    def _new(self, path: str, body: dict[str, Any], idempotency_key: str) -> JobOut:
        headers = {"Idempotency-Key": idempotency_key}
        return self._request(JobOut, "POST", path, json=body, headers=headers)

    def _request(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        answer = self._send(method, path, **request)
        try:
            return TypeAdapter(kind).validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise ServiceUnreachable(self._unreadable(path)) from error

    def _send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, **request)
        except httpx2.TransportError as error:
            raise NoAnswer(
                f"no service responds at {self._url} ({error}); start one with `holdfast serve`, or set HOLDFAST_URL"
            ) from error
        self._log_version_difference(answer.headers.get(HEADER, ""))
        if answer.is_error:
            problem = _problem(answer)
            if problem is None:
                raise ServiceUnreachable(self._foreign_error(answer, path))
            raise Refused(problem)
        return answer

    def _log_version_difference(self, service: str) -> None:
        """Log once that the service has a different version."""
        if service and service != self._service and (words := difference(service, __version__)):
            log.warning("note: %s", words)
        self._service = service

    def _foreign_error(self, answer: httpx2.Response, path: str) -> str:
        """Describe an error response that Holdfast did not send."""
        status = f"{answer.status_code} {answer.reason_phrase}".rstrip()
        if answer.status_code in _PROXY_ERRORS:
            return f"a proxy at {self._url} responded {status} to {path}; check the service behind it, or HOLDFAST_URL"
        return (
            f"{self._url} is not a Holdfast service ({path} responded {status}); check HOLDFAST_URL"
        )

    def _unreadable(self, path: str) -> str:
        if not self._service:
            return f"{self._url} is not a Holdfast service ({path}); check HOLDFAST_URL"
        return (
            f"{self._url} runs Holdfast {self._service}, and this client, {__version__}, cannot read its response to {path}; "
            f"install {DISTRIBUTION} {self._service}"
        )


_STREAM_TIMEOUT: Final = httpx2.Timeout(
    TIMEOUT_S, read=60.0
)  # Streams send a keep-alive every 15 s.


def _body(task: TaskIn) -> dict[str, Any]:
    """Return a job file as JSON without defaults, which an older service does not know."""
    body = task.model_dump(exclude_none=True)
    if task.limits:  # Here, None removes a limit.
        body["limits"] = task.limits.model_dump(exclude_unset=True)
    return body


def _problem(answer: httpx2.Response) -> Problem | None:
    """Return the problem details of a response; None if another program sent it."""
    try:
        return Problem.model_validate_json(answer.content, extra="ignore")
    except ValidationError:
        return None
