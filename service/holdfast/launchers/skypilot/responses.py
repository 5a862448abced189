"""Classifies responses of a SkyPilot API server: success, refusal or inconclusive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from holdfast.errors import HoldfastError, LauncherUnreachable

MAX_ID_CHARS: Final = 64
"""Maximum length of a request id, as in the database; SkyPilot's have 36 characters."""
MAX_DETAIL_CHARS: Final = 2000
"""Maximum length of an error message.
A lower value cuts off the remedy; a higher value fills pages with text."""


class RequestFailed(HoldfastError):
    """SkyPilot executed a request, and it failed."""

    def __init__(self, kind: str, detail: str) -> None:
        self.exception_type = kind
        """Name of SkyPilot's exception."""
        super().__init__(detail)


class RequestNotFound(HoldfastError):
    """SkyPilot no longer knows this request."""

    published_slug = "request-gone"


class Unanswered(LauncherUnreachable):
    """SkyPilot's API server did not respond; its requests may still run."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """Request in SkyPilot's list."""

    request_id: str
    name: str
    status: str
    body: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status in {"SUCCEEDED", "FAILED", "CANCELLED"}


def require_success(reply: httpx2.Response) -> httpx2.Response:
    """Return a successful response; any other one is inconclusive.

    Raises:
        LauncherUnreachable: the response is not a success.
    """
    if reply.is_success:
        return reply
    if reply.status_code in {401, 403}:
        raise LauncherUnreachable(
            "SkyPilot's API server rejected this service's credentials; set HOLDFAST_SKYPILOT_TOKEN to a service account's token"
        )
    words = _error_text(_detail(reply)) or "a body of unknown format"
    raise LauncherUnreachable(
        f"SkyPilot's API server responded to {reply.url.path} with {reply.status_code}: {words}"
    )


def require_accepted(reply: httpx2.Response) -> httpx2.Response:
    """Return a successful response or raise SkyPilot's refusal.

    Refusals by a proxy or of our version are inconclusive.

    Raises:
        LauncherUnreachable: the response is inconclusive.
        RequestFailed: the response is a refusal.
    """
    detail = _detail(reply)
    if reply.status_code == 422 and isinstance(detail, list):
        raise RequestFailed("Refused", _error_text(detail))
    if reply.status_code == 400:
        _raise_exception(detail)
    return require_success(reply)


def result(reply: httpx2.Response, request_id: str) -> Any:
    """Return the result of a request.

    Raises:
        LauncherUnreachable: the response cannot be parsed.
        RequestFailed: the request failed.
        RequestNotFound: SkyPilot does not know the request.
    """
    detail = _detail(reply) if reply.is_error else None
    if reply.status_code == 404 and request_id in _error_text(detail):
        raise RequestNotFound(_error_text(detail))
    if reply.status_code == 500 and isinstance(detail, dict) and detail.get("error"):
        _raise_exception(_parsed(detail["error"], "an error"))
    payload = mapping(require_success(reply), "a request")
    return _parsed(payload.get("return_value"), "the result of a request")


def request_id(reply: httpx2.Response) -> str:
    """Return the id of an accepted request.

    Raises:
        LauncherUnreachable: the response has no id.
    """
    value = str(reply.headers.get("X-Skypilot-Request-ID", ""))
    if 0 < len(value) <= MAX_ID_CHARS:
        return value
    raise LauncherUnreachable(f"SkyPilot's response to {reply.url.path} has no request id")


def request_list(reply: httpx2.Response) -> list[ApiRequest]:
    """Return the requests in a list.

    Raises:
        LauncherUnreachable: the list cannot be parsed.
    """
    listed = _json(reply)
    if not isinstance(listed, list):
        raise LauncherUnreachable("SkyPilot's list of requests has an unknown format")
    return [_api_request(_checked_mapping(item, "a request")) for item in listed]


def mapping(reply: httpx2.Response, what: str) -> Mapping[str, Any]:
    """Return the JSON object of a response.

    Raises:
        LauncherUnreachable: the response has none.
    """
    return _checked_mapping(_json(reply), what)


def date(reply: httpx2.Response) -> datetime | None:
    """Return the response time by the server's clock; None if missing or malformed."""
    try:
        value = parsedate_to_datetime(reply.headers.get("Date", ""))
    except ValueError:
        return None
    return value if value.tzinfo else None


def _api_request(value: Mapping[str, Any]) -> ApiRequest:
    try:
        body = json.loads(value.get("request_body") or "null")
    except (TypeError, ValueError, RecursionError):
        body = None
    return ApiRequest(
        request_id=str(value.get("request_id", "")),
        name=str(value.get("name", "")),
        status=str(value.get("status", "")),
        body=body if isinstance(body, dict) else {},
    )


def _raise_exception(value: Any) -> None:
    """Raise SkyPilot's exception if the value is a serialized one."""
    match value:
        case {"type": str(kind), "message": str(message)}:
            raise RequestFailed(kind, message)


def _detail(reply: httpx2.Response) -> Any:
    try:
        value = reply.json()
    except (ValueError, RecursionError):
        return reply.text[:500]
    return value.get("detail", value) if isinstance(value, dict) else value


def _error_text(detail: Any) -> str:
    """Return a server's error message without the request's contents, which may include secrets."""
    match detail:
        case str():
            words = detail
        case {"message": str(message)}:
            words = message
        case list():
            words = "; ".join(filter(None, map(_validation_error, detail)))
        case _:
            words = ""
    return words[:MAX_DETAIL_CHARS]


def _validation_error(item: Any) -> str:
    """Format one validation error of FastAPI with its location, without the value."""
    match item:
        case {"loc": list(loc), "msg": str(text)}:
            return f"{'.'.join(map(str, loc))}: {text}"
        case {"msg": str(text)}:
            return text
    return ""


def _json(reply: httpx2.Response) -> Any:
    try:
        return reply.json()
    except (ValueError, RecursionError) as error:
        raise LauncherUnreachable(
            "SkyPilot's response is not JSON; job state is unchanged"
        ) from error


def _parsed(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise LauncherUnreachable(f"{what} is not JSON; job state is unchanged") from error


def _checked_mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise LauncherUnreachable(f"SkyPilot returned {what} in an unknown format")
