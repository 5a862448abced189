"""HTTP client of the worker for the service. Standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from holdfast_worker.protocol.node_commands import (
    COMMAND_OUTPUT_PATH,
    NEXT_COMMAND_PATH,
    NEXT_COMMAND_S,
    START_COMMAND_PATH,
    CommandOutput,
    NodeCommand,
    encode_bytes,
)
from holdfast_worker.protocol.node_shells import (
    HOLD_S,
    SHELL_INPUT_PATH,
    SHELL_OUTPUT_PATH,
    ShellInput,
)
from holdfast_worker.protocol.release import user_agent
from holdfast_worker.protocol.reports import (
    FENCED,
    NOT_REGISTERED,
    PERCENTILES,
    PROBLEMS,
    REGISTER_PATH,
    RENDEZVOUS_PATH,
    REPORTS_PATH,
    GroupDrill,
    JobStop,
    Leader,
    Meeting,
    Registration,
    Report,
)

TIMEOUT_S: Final = 10.0
"""Timeout of a request.
A lower value fails on a slow service; a higher value delays retries."""
FINAL_STATUSES: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""Statuses that a retry does not change, if the service itself returns them."""


class ServiceUnreachable(Exception):
    """The service is unreachable, or requests a later retry."""


class ReportRejected(Exception):
    """The service rejects this request permanently."""


class UnknownIncarnation(Exception):
    """The service does not know this incarnation, which has to register."""


class Superseded(Exception):
    """A different incarnation replaced this one, or the job has ended.

    With the service's message.
    """


REFUSALS: Final = (ReportRejected, Superseded, UnknownIncarnation)
"""What a repetition of a request does not change."""


@dataclass(frozen=True, slots=True)
class DeliveryResponse:
    """The response of the service to a delivery."""

    next: int
    """Number of the next expected report."""
    leave_within_s: float | None
    """Seconds in which the job is to save its work and exit; None without such a request."""
    drills: Sequence[GroupDrill] = ()
    stop: JobStop | None = None
    """What becomes of the job, if it stops."""
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds until the expected end of the job, by percentile; empty if not asked for or unknown."""


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Registers an attempt of a job, delivers its reports, and finds the leader of its nodes.

    Each method may raise `ServiceUnreachable`, `ReportRejected`, `UnknownIncarnation` and `Superseded`.
    """

    url: str
    job: str
    token: str
    incarnation: str | None = None
    """None: the launcher numbers the attempts, so that they do not register."""

    def register(self) -> Registration:
        """Register this incarnation and return the number that the service assigns."""
        assert self.incarnation, "only attempts without a number register"
        reply = self._post(REGISTER_PATH, {"incarnation": self.incarnation})
        try:
            next_number = int(reply["next"])
            # A service of an older version omits `before` and has imported no relayed reports.
            return Registration(
                int(reply["attempt"]), next_number, int(reply.get("before", next_number - 1))
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def meet(self, node: int, own: Leader, joined: int = 0) -> Meeting:
        """Ask where node number `node` meets those of other groups.

        `own` describes the node; only node 0 needs addresses. `joined`: number of leaders that it has joined before.
        """
        body = {**asdict(own), "addresses": [*own.addresses], "node": node, "joined": joined}
        reply = self._post(RENDEZVOUS_PATH, body)
        try:
            found = reply["leader"]
            leader = found and Leader(
                str(found["group"]),
                str(found["incarnation"]),
                [*map(str, found["addresses"])],
                int(found["port"]),
            )
            return Meeting(leader, int(reply["start"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def deliver(
        self,
        attempt: int,
        reports: list[Report],
        oldest: int | None = None,
        *,
        asks_end: bool = False,
    ) -> DeliveryResponse:
        """Deliver reports of an attempt; an empty delivery returns the next expected number.

        `oldest` is the number of the first report that is still here, if the service expects an older one. A service of an
        earlier version ignores it, as well as `asks_end`: whether the expected end of the job is wanted.
        """
        body: dict[str, Any] = {
            "attempt": attempt,
            "reports": [
                {"n": r.n, "at": r.at, "kind": r.kind, "body": dict(r.body)} for r in reports
            ],
        }
        if self.incarnation:
            body["incarnation"] = self.incarnation
        if oldest is not None:
            body["oldest"] = oldest
        if asks_end:
            body["asks_end"] = True
        reply = self._post(REPORTS_PATH, body)
        try:
            within_s = reply.get("leave_within_s")
            return DeliveryResponse(
                int(reply["next"]),
                None if within_s is None else float(within_s),
                # A service of an earlier version requests none.
                [_group_drill(each) for each in reply.get("drills", ())],
                JobStop.parse(reply.get("stop")),
                _remaining_s(reply.get("remaining")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def next_command(self, node: int, attempt: int) -> NodeCommand | None:
        """Wait for a command for a node; None if there is none for `NEXT_COMMAND_S`."""
        body = {"node": node, "attempt": attempt, "terminals": True}
        reply = self._post(NEXT_COMMAND_PATH, body, NEXT_COMMAND_S + TIMEOUT_S)
        try:
            if reply["id"] is None:
                return None
            command = tuple(map(str, reply["command"]))
            terminal = reply.get("terminal")  # A service of an earlier version has no shells.
            return NodeCommand(
                str(reply["id"]),
                command,
                float(reply["timeout_s"]),
                None if terminal is None else str(terminal),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def start_command(self, command: str, runner: str) -> bool:
        """Announce that this node runs a command; False if it must not."""
        reply = self._post(START_COMMAND_PATH.replace("{id}", command), {"runner": runner})
        return bool(reply == {"starts": True})

    def send_command_output(self, command: str, runner: str, output: CommandOutput) -> None:
        """Send output of a command, or its end."""
        body = {**output.dump(), "runner": runner}
        self._post(COMMAND_OUTPUT_PATH.replace("{id}", command), body)

    def shell_input(self, shell: str, runner: str, at: int, size: tuple[int, int]) -> ShellInput:
        """Wait for input of a shell after `at` bytes, or another size in columns and rows."""
        body = {"runner": runner, "at": at, "columns": size[0], "rows": size[1]}
        path = SHELL_INPUT_PATH.replace("{id}", shell)
        reply = self._post(path, body, HOLD_S + TIMEOUT_S)
        try:
            return ShellInput.parse(reply)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def send_shell_output(self, shell: str, runner: str, at: int, data: bytes) -> int:
        """Send output of a shell after `at` bytes; return how many the service has of all."""
        body = {"runner": runner, "at": at, "data": encode_bytes(data)}
        path = SHELL_OUTPUT_PATH.replace("{id}", shell)
        reply = self._post(path, body, HOLD_S + TIMEOUT_S)
        try:
            return int(reply["next"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"malformed response: {error}") from error

    def _post(self, path: str, body: dict[str, Any], timeout_s: float = TIMEOUT_S) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the address of the service is a setting
            self.url.rstrip("/") + path.format(job=self.job),
            data=json.dumps(body, separators=(",", ":")).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.token}",
                "User-Agent": user_agent("holdfast-worker"),
            },
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
                return json.loads(reply.read() or b"null")  # 204 has no body.
        except urllib.error.HTTPError as error:
            with error:
                raise _to_error(error) from error
        except (OSError, HTTPException, ValueError) as error:
            raise ServiceUnreachable(str(error)) from error


def _to_error(answer: urllib.error.HTTPError) -> Exception:
    """The exception for an error response."""
    status = f"{answer.code} {answer.reason}"
    try:
        problem = json.load(answer)
        _, ours, kind = problem["type"].rpartition(PROBLEMS)
        detail = str(problem.get("detail") or status)
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return ServiceUnreachable(status)  # Not a problem document.
    if ours and kind == FENCED:
        return Superseded(detail)
    if ours and kind == NOT_REGISTERED:
        return UnknownIncarnation(detail)
    return (
        ReportRejected(f"{status}: {detail}")
        if ours and answer.code in FINAL_STATUSES
        else ServiceUnreachable(status)
    )


def _remaining_s(remaining: Mapping[str, Any] | None) -> Mapping[str, float]:
    if not remaining:
        return {}
    return {name: float(remaining[f"{name}_s"]) for name in PERCENTILES}


def _group_drill(reply: Mapping[str, Any]) -> GroupDrill:
    nodes = [int(node) for node in reply["nodes"]]
    return GroupDrill(str(reply["requested_at"]), nodes, float(reply["within_s"]))
