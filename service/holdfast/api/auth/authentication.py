"""Who is there, and whether they may: people with a token or a session, workers for their own job, and the owner of
the service on its own machine.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from fastapi import Depends, Request
from starlette.routing import BaseRoute

from holdfast.api.auth import route_policy
from holdfast.api.auth.local_access import why_not_here
from holdfast.api.auth.route_policy import PublicAccess
from holdfast.api.rate_limit import LimitClass, RateLimitResult
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import NEEDS, NOBODY, OWNER, WORKER_GRACE, Action, Caller
from holdfast.errors import (
    Fenced,
    Forbidden,
    NotFound,
    StoreUnavailable,
    TooManyRequests,
    Unauthenticated,
)
from holdfast.services import Services
from holdfast.store.identity.access_tokens import Token
from holdfast.store.identity.sessions import Session
from holdfast.store.report_ingest import ended_long_ago

COOKIES: Final = ("__Host-holdfast", "holdfast")
"""Of sessions: over https, where no other host can set it, and without it on this machine."""
SPENDS: Final = frozenset({Action.SUBMIT})
"""Actions that begin to cost money, of which fewer may come in a minute."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CLAIM: Final = re.compile(r"hf_([0-9a-f]{12})_")


def authenticate(request: Request) -> Caller:
    """Let a request in. Every route does this first, before it reads a body.

    Raises:
        Unauthenticated: the token is wrong, or there is none where one is needed.
        Forbidden: they may know what it is about, and not do this.
        NotFound: they may not know that there is such a job or project.
        Fenced: it is a worker of a job that ended long ago.
        TooManyRequests: they sent too many of this kind.
    """
    services: Services = request.app.state.services
    authorization = request.headers.get("authorization")
    route: BaseRoute = request.scope["route"]
    match route_policy.of(route, request.method):
        case PublicAccess.OPEN | PublicAccess.ADDRESS:
            return NOBODY
        case PublicAccess.WORKER:
            _admit_worker(request, services, _bearer(authorization))
            return NOBODY
        case action:
            caller = _person(request, services, authorization)
            _pass(
                request,
                services,
                LimitClass.SPEND if action in SPENDS else LimitClass.ASK,
                _key(caller),
            )
            _allow(request, services, caller, action)
            return caller


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


TheCaller = Annotated[Caller, Depends(_caller)]
"""The caller, who was admitted before the body was read."""


def _doer(request: Request, caller: TheCaller) -> Actor:
    return actor_of(request, caller)


TheDoer = Annotated[Actor, Depends(_doer)]
"""Whoever sent the request, as the audit log names them."""


def actor_of(request: Request, caller: Caller) -> Actor:
    """A caller as the audit log names them."""
    return Actor(
        name=caller.name or "owner",
        token_id=caller.token_id,
        address=_address(request),
        request_id=getattr(request.state, "request_id", None),
    )


def session_of(request: Request, services: Services) -> Session | None:
    """The session whose cookie came along; None where none did, or where it is over."""
    text = request.cookies.get(cookie_of(request))
    return services.sessions.find(text, services.clock.now()) if text else None


def cookie_of(request: Request) -> str:
    """The name of the cookie that a request may have."""
    secure, plain = COOKIES
    return secure if is_secure(request) else plain


def is_secure(request: Request) -> bool:
    """Whether a browser sent this over https, by its proxy's word; who says so falsely only spoils their own cookie."""
    told = request.headers.get("x-forwarded-proto", request.url.scheme)
    return told.partition(",")[0].strip() == "https"


def project_seen(services: Services, caller: Caller, job_id: str) -> str | None:
    """The project of a job; None where there is no such job, as far as the caller may know."""
    project = services.reading.project_of(job_id)
    return project if project is not None and caller.belongs(project) else None


def is_worker_of(job_id: str, request: Request, services: Services) -> bool:
    """Whether a request has the token of a job's workers; False also where its header is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and services.tokens.is_worker(token.strip(), job_id)


def count_report(request: Request, services: Services, job_id: str) -> None:
    """Let one more request of a job's workers pass.

    Raises:
        TooManyRequests: they sent too many.
    """
    _pass(request, services, LimitClass.REPORT, job_id)


def _admit_worker(request: Request, services: Services, token: str | None) -> None:
    job_id: str = request.path_params["job_id"]
    if not services.tokens.is_worker(token or "", job_id):
        raise Unauthenticated("reports need the token that the job's launcher gave to its workers")
    count_report(request, services, job_id)
    ended_at = services.reading.ended_at(job_id)
    if ended_at and services.clock.now() - ended_at > WORKER_GRACE:
        # Not as a wrong token, on which a worker would go on without us: one that still runs has to stop.
        raise Fenced(ended_long_ago(job_id, ended_at))


def _person(request: Request, services: Services, authorization: str | None) -> Caller:
    if (text := _bearer(authorization)) is not None:
        if text.startswith("hfw_"):
            raise Forbidden("a worker's token may only report for its own job")
        token = services.keyring.find(text)
        if token is None:
            why = "is not known here; look at HOLDFAST_TOKEN or the service's token file"
            # Only what has the form of an id: what was mistyped may have a part of the secret in its place.
            claimed = _CLAIM.match(text)
            claimed_id = claimed[1] if claimed else ""
            digest = hashlib.sha256(text.encode()).hexdigest()
            raise _failed(request, services, claimed_id, f"this access token {why}", digest)
        return _holder(request, services, token)
    if session := session_of(request, services):
        if request.method not in SAFE:
            _check_page(request, session)
        _note(lambda: services.sessions.note_use(session, services.clock.now()))
        return _holder(request, services, services.keyring.get(session.token_id))
    if reason := why_not_here(request):
        raise Unauthenticated(reason)
    if not services.trusts_loopback():
        raise Unauthenticated(
            "an access token is needed, as this service has users; type holdfast login, or set HOLDFAST_TOKEN"
        )
    return OWNER


def _holder(request: Request, services: Services, token: Token) -> Caller:
    """Whoever has a token that was made here, if it still lets them in."""
    now = services.clock.now()
    if reason := token.refusal(now):
        raise _failed(request, services, token.id, f"this access token {reason}; get another")
    caller = services.people.caller(token)
    if caller is None:
        raise _failed(request, services, token.id, f"the user {token.user} may not come in")
    _note(lambda: services.keyring.note_use(token, now))
    return caller


def _note(use: Callable[[], None]) -> None:
    with suppress(StoreUnavailable):  # Whoever only reads need not wait for one who writes.
        use()


def _check_page(request: Request, session: Session) -> None:
    """That a request with a cookie comes from a page of ours: others can send the cookie along, too."""
    told = request.headers.get("x-csrf-token", "")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    scheme = "https" if is_secure(request) else "http"
    own = origin == f"{scheme}://{request.headers.get('host', '')}"
    is_ours = (site or origin) and site in {None, "same-origin"} and (own or origin is None)
    if not is_ours or not hmac.compare_digest(told.encode(), session.csrf.encode()):
        raise Forbidden(
            "a session may change things only from its own page, with its X-CSRF-Token; log in again"
        )


def _allow(request: Request, services: Services, caller: Caller, action: Action) -> None:
    place = request.path_params
    project: str | None = place.get("project")
    if NEEDS[action].role and "job_id" in place:
        job_id: str = place["job_id"]
        project = project_seen(services, caller, job_id)
        if project is None:
            project = _project_of_removed(services, caller, job_id, action)
    caller.require(action, project)


def _project_of_removed(services: Services, caller: Caller, job_id: str, action: Action) -> str:
    """The project of a removed job, for a caller who removes it again.

    Raises:
        NotFound: they ask for something else, or it was not removed as far as they may know.
    """
    removal = services.removals.find(job_id)
    if removal is None or not caller.belongs(removal.project):
        raise NotFound(f"there is no job {job_id}")
    if action is not Action.REMOVE:
        raise NotFound(removal.told)
    return removal.project


def _failed(
    request: Request, services: Services, token_id: str, why: str, text_digest: str = ""
) -> Unauthenticated | TooManyRequests:
    """The refusal of a wrong token; after many with the same one, or very many with any, one that says to wait.

    A good token is never counted, and wrong ones of others at the same address do not keep this one from its reason.
    """
    address = _address(request) or "nowhere"
    taken = [
        services.traffic.take(LimitClass.FAIL, f"{address}/{text_digest or token_id}"),
        services.traffic.take(LimitClass.GUESS, address),
    ]
    if services.traffic.take(LimitClass.NOTE, "").passes:
        doer = Actor(name="", address=_address(request), request_id=request.state.request_id)
        deed = doer.did("login.refused", token_id, after={"why": why})
        _note(lambda: services.audit.note(deed))
    for one in taken:
        if not one.passes:
            return _too_many(request, one, "too many wrong tokens came from this address")
    return Unauthenticated(why)


def _pass(request: Request, services: Services, kind: LimitClass, who: str | None) -> None:
    if who is None:
        return
    taken = services.traffic.take(kind, who)
    request.state.traffic = taken
    if not taken.passes:
        what = {LimitClass.SPEND: "submissions", LimitClass.REPORT: "reports"}.get(kind, "requests")
        raise _too_many(request, taken, f"more than {taken.limit} {what} in a minute")


def _too_many(request: Request, taken: RateLimitResult, why: str) -> TooManyRequests:
    request.state.traffic = taken
    wait_s = taken.retry_after_s
    return TooManyRequests(f"{why}; try again in {wait_s} s", retry_after_s=wait_s)


def _key(caller: Caller) -> str | None:
    """Whose requests are counted together; None for the owner, who has no one to keep the service from."""
    return f"user/{caller.name}" if caller.name else None


def _address(request: Request) -> str | None:
    """Where a request came from, as far as it fits; a proxy may say whatever it likes."""
    return request.client.host[:64] if request.client else None


def _bearer(authorization: str | None) -> str | None:
    if not authorization:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("write the Authorization header as `Bearer` and a token")
    return token.strip()
