"""What a SkyPilot API server replies: a success, a no that it means, or nothing to conclude from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from holdfast.errors import HoldfastError, LauncherUnreachable

LONGEST_ID: Final = 64
"""Of a request; SkyPilot's have 36 letters, and the database has room for so many."""
LONGEST_WORDS: Final = 2000
"""Letters of an error that are passed on. Fewer cut off what to do about it; more fill pages with what nobody reads."""


class RequestFailed(HoldfastError):
    """SkyPilot has carried out a request, and it failed."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        """Name of SkyPilot's exception."""
        super().__init__(detail)


class RequestGone(HoldfastError):
    """SkyPilot does not know this request any more."""


class Unanswered(LauncherUnreachable):
    """SkyPilot's API server does not answer; what it was asked to do may go on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as SkyPilot lists it."""

    request_id: str
    name: str
    status: str
    body: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether it will change nothing any more."""
        return self.status in {"SUCCEEDED", "FAILED", "CANCELLED"}


def sound(reply: httpx2.Response) -> httpx2.Response:
    """The answer to what has no reason to be refused: any other than a success is as good as none.

    Raises:
        LauncherUnreachable: it is no success.
    """
    if reply.is_success:
        return reply
    if reply.status_code in {401, 403}:
        raise LauncherUnreachable(
            "SkyPilot's API server refuses this service; set HOLDFAST_SKYPILOT_TOKEN to a service account's token"
        )
    words = _words(_detail(reply)) or "nothing that is known here"
    raise LauncherUnreachable(
        f"SkyPilot's API server answered {reply.url.path} with {reply.status_code}: {words}"
    )


def granted(reply: httpx2.Response) -> httpx2.Response:
    """The answer to what SkyPilot may refuse. A proxy's no, or one to our version, is no word about the task.

    Raises:
        LauncherUnreachable: it is no success.
        RequestFailed: it is a refusal.
    """
    detail = _detail(reply)
    if reply.status_code == 422 and isinstance(detail, list):
        raise RequestFailed("Refused", _words(detail))
    if reply.status_code == 400:
        _raise_exception(detail)
    return sound(reply)


def result(reply: httpx2.Response, request_id: str) -> Any:
    """What a request came to.

    Raises:
        LauncherUnreachable: nothing that can be understood.
        RequestFailed: it failed.
        RequestGone: SkyPilot does not know it.
    """
    detail = _detail(reply) if reply.is_error else None
    if reply.status_code == 404 and request_id in _words(detail):
        raise RequestGone(_words(detail))
    if reply.status_code == 500 and isinstance(detail, dict) and detail.get("error"):
        _raise_exception(_loaded(detail["error"], "an error"))
    payload = mapping(sound(reply), "a request")
    return _loaded(payload.get("return_value"), "the result of a request")


def request_id(reply: httpx2.Response) -> str:
    """What SkyPilot calls the request that it has taken.

    Raises:
        LauncherUnreachable: it does not say.
    """
    told = str(reply.headers.get("X-Skypilot-Request-ID", ""))
    if 0 < len(told) <= LONGEST_ID:
        return told
    raise LauncherUnreachable(f"SkyPilot answered {reply.url.path} without the id of a request")


def asked(reply: httpx2.Response) -> list[Asked]:
    """The requests in a list of them.

    Raises:
        LauncherUnreachable: it is none, or one of them cannot be understood.
    """
    listed = _json(reply)
    if not isinstance(listed, list):
        raise LauncherUnreachable("SkyPilot listed its requests in a way that is not known here")
    return [_asked(_checked_mapping(item, "a request")) for item in listed]


def mapping(reply: httpx2.Response, what: str) -> Mapping[str, Any]:
    """The JSON object in an answer.

    Raises:
        LauncherUnreachable: there is none.
    """
    return _checked_mapping(_json(reply), what)


def date(reply: httpx2.Response) -> datetime | None:
    """When the server answered, by its own clock; None where it does not say, or says it in a way of its own."""
    try:
        told = parsedate_to_datetime(reply.headers.get("Date", ""))
    except ValueError:
        return None
    return told if told.tzinfo else None


def _asked(told: Mapping[str, Any]) -> Asked:
    try:
        body = json.loads(told.get("request_body") or "null")
    except (TypeError, ValueError, RecursionError):
        body = None
    return Asked(
        request_id=str(told.get("request_id", "")),
        name=str(told.get("name", "")),
        status=str(told.get("status", "")),
        body=body if isinstance(body, dict) else {},
    )


def _raise_exception(told: Any) -> None:
    """Raise what SkyPilot has raised, if this is such a thing as it writes one down."""
    match told:
        case {"type": str(kind), "message": str(message)}:
            raise RequestFailed(kind, message)


def _detail(reply: httpx2.Response) -> Any:
    try:
        told = reply.json()
    except (ValueError, RecursionError):
        return reply.text[:500]
    return told.get("detail", told) if isinstance(told, dict) else told


def _words(detail: Any) -> str:
    """What a server says of an error, for people: nothing of what it was sent, in which there are secrets."""
    match detail:
        case str():
            words = detail
        case {"message": str(message)}:
            words = message
        case list():
            words = "; ".join(filter(None, map(_flaw, detail)))
        case _:
            words = ""
    return words[:LONGEST_WORDS]


def _flaw(item: Any) -> str:
    """One thing that FastAPI has found wrong in a body, and where; the value itself stands beside it."""
    match item:
        case {"loc": list(loc), "msg": str(said)}:
            return f"{'.'.join(map(str, loc))}: {said}"
        case {"msg": str(said)}:
            return said
    return ""


def _json(reply: httpx2.Response) -> Any:
    try:
        return reply.json()
    except (ValueError, RecursionError) as error:
        raise LauncherUnreachable("SkyPilot's answer is not JSON; nothing is concluded") from error


def _loaded(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise LauncherUnreachable(f"{what} is not JSON; nothing is concluded from it") from error


def _checked_mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise LauncherUnreachable(f"SkyPilot told {what} in a way that is not known here")
