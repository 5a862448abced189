"""Who may call: people with an access token, workers for their own job, and, without a token, this machine alone."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from fastapi import Header, Request

from holdfast.api.services import The
from holdfast.errors import Forbidden, Unauthenticated

Authorization = Annotated[str | None, Header(include_in_schema=False)]

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def person(request: Request, services: The, authorization: Authorization = None) -> None:
    """Let a person in.

    Raises:
        Unauthenticated: the token is wrong, or there is none and the caller is not on this machine.
        Forbidden: it is a worker's token, which may only report.
    """
    token = _bearer(authorization)
    if token is None:
        if not _from_this_machine(request):
            raise Unauthenticated(
                "an access token is needed from another machine; set HOLDFAST_TOKEN"
            )
    elif token.startswith("hfw_"):
        raise Forbidden("a worker's token may only report for its own job")
    elif not services.tokens.is_user(token):
        raise Unauthenticated(
            "this access token is not known here; look at HOLDFAST_TOKEN or the service's token file"
        )


def worker(job_id: str, services: The, authorization: Authorization = None) -> None:
    """Let a worker of this job in.

    Raises:
        Unauthenticated: the token is missing or not that of this job.
    """
    if not services.tokens.is_worker(_bearer(authorization) or "", job_id):
        raise Unauthenticated("reports need the token that the job's launcher gave to its workers")


def _bearer(authorization: str | None) -> str | None:
    if not authorization:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("write the Authorization header as `Bearer` and a token")
    return token.strip()


def _from_this_machine(request: Request) -> bool:
    """Whether a request without a token may be served.

    The peer must be on the loopback interface, no proxy may stand in between, and the Host must be a name of this
    machine: else a web page anywhere could speak through the browser of whoever runs the service (DNS rebinding).
    """
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        loopback = ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
    name = (
        request.headers.get("host", "").rsplit(":", 1)[0]
        if request.headers.get("host", "")[-1:] != "]"
        else "[::1]"
    )
    foreign_page = request.headers.get("sec-fetch-site", "same-origin") not in {
        "same-origin",
        "none",
    }
    return loopback and name in _LOCAL_NAMES and not foreign_page
