"""Authentication and authorization of users, sessions, workers and the local owner."""

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
from holdfast.api.auth.local_access import local_owner_refusal
from holdfast.api.auth.route_policy import PublicAccess
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import (
    ACTION_REQUIREMENTS,
    ANONYMOUS,
    OWNER,
    WORKER_GRACE,
    Action,
    Caller,
)
from holdfast.errors import (
    Fenced,
    Forbidden,
    NotFound,
    StoreUnavailable,
    TooManyRequests,
    Unauthenticated,
)
from holdfast.rate_limit import LimitClass, RateLimitResult
from holdfast.services import Services
from holdfast.store.identity.access_tokens import Token
from holdfast.store.identity.sessions import Session
from holdfast.store.report_ingest import ended_message

COOKIES: Final = ("__Host-holdfast", "holdfast")
"""Session cookies: the first over https, where no other host can set it; the second on this machine."""
SPENDING_ACTIONS: Final = frozenset({Action.SUBMIT})
"""Actions that start spending money and have a lower rate limit."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_COUNTED_APART: Final = ("commands", "shells")
"""Subjects below a job whose requests by workers have a limit of their own."""
_TOKEN_ID: Final = re.compile(r"hf_([0-9a-f]{12})_")


def authenticate(request: Request) -> Caller:
    """Authenticate and authorize a request. Every route does this before it reads a body.

    Raises:
        Unauthenticated: the token is wrong or missing.
        Forbidden: the caller may see the target but not do this.
        NotFound: the caller may not know that the job or project exists.
        Fenced: the worker's job ended long ago.
        TooManyRequests: the caller exceeded a rate limit.
    """
    services: Services = request.app.state.services
    authorization = request.headers.get("authorization")
    route: BaseRoute = request.scope["route"]
    match route_policy.access_of(route, request.method):
        case PublicAccess.OPEN | PublicAccess.ADDRESS:
            return ANONYMOUS
        case PublicAccess.WORKER:
            _authenticate_worker(request, services, _bearer(authorization))
            return ANONYMOUS
        case action:
            caller = _authenticate_user(request, services, authorization)
            _check_rate_limit(
                request,
                services,
                LimitClass.SPEND if action in SPENDING_ACTIONS else LimitClass.ASK,
                _rate_limit_key(caller),
            )
            _authorize(request, services, caller, action)
            return caller


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


TheCaller = Annotated[Caller, Depends(_caller)]
"""The caller, authorized before the body is read."""


def _actor(request: Request, caller: TheCaller) -> Actor:
    return actor_of(request, caller)


TheActor = Annotated[Actor, Depends(_actor)]
"""The sender of the request, as the audit log names them."""


def actor_of(request: Request, caller: Caller) -> Actor:
    """Return a caller as the audit log names them."""
    return Actor(
        name=caller.name or "owner",
        token_id=caller.token_id,
        address=_address(request),
        request_id=getattr(request.state, "request_id", None),
    )


def session_of(request: Request, services: Services) -> Session | None:
    """Return the session of the request's cookie; None without a cookie, or after its end."""
    text = request.cookies.get(cookie_of(request))
    return services.sessions.find(text, services.clock.now()) if text else None


def cookie_of(request: Request) -> str:
    """Return the name of the cookie that the request may carry."""
    secure, plain = COOKIES
    return secure if is_secure(request) else plain


def is_secure(request: Request) -> bool:
    """Whether a browser sent the request over https, according to its proxy.

    A false claim only affects the cookie of the same browser.
    """
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return scheme.partition(",")[0].strip() == "https"


def is_worker_of(job_id: str, request: Request, services: Services) -> bool:
    """Whether a request carries the token of a job's workers; also False for a malformed header."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and services.tokens.is_worker(token.strip(), job_id)


def count_report(request: Request, services: Services, job_id: str) -> None:
    """Count one more request of a job's workers.

    Raises:
        TooManyRequests: the workers sent too many.
    """
    _check_rate_limit(request, services, LimitClass.REPORT, job_id)


def count_sign_in(request: Request, services: Services) -> None:
    """Count one more request of a sign-in from an address.

    Raises:
        TooManyRequests: the address sent too many.
    """
    address = _address(request) or "nowhere"
    _check_rate_limit(request, services, LimitClass.SIGN_IN, address)


def _authenticate_worker(request: Request, services: Services, token: str | None) -> None:
    job_id: str = request.path_params["job_id"]
    if not services.tokens.is_worker(token or "", job_id):
        raise Unauthenticated("reports need the token that the job's launcher gave to its workers")
    # Nodes that wait for commands must not delay reports, nor the output of shells those that wait.
    kind = next((f"/{word}" for word in _COUNTED_APART if f"/{word}/" in request.url.path), "")
    count_report(request, services, f"{job_id}{kind}")
    ended_at = services.queries.ended_at(job_id)
    if ended_at and services.clock.now() - ended_at > WORKER_GRACE:
        # Not treated as a wrong token: that worker would continue without the service, but a fenced one must stop.
        raise Fenced(ended_message(job_id, ended_at))


def _authenticate_user(request: Request, services: Services, authorization: str | None) -> Caller:
    if (text := _bearer(authorization)) is not None:
        if text.startswith("hfw_"):
            raise Forbidden("a worker's token may only report for its own job")
        token = services.access_tokens.find(text)
        if token is None:
            why = "is not accepted; run holdfast login, or check HOLDFAST_TOKEN and the service's token file"
            # Only what has the form of an id: a mistyped value may contain a part of the secret.
            claimed = _TOKEN_ID.match(text)
            claimed_id = claimed[1] if claimed else ""
            digest = hashlib.sha256(text.encode()).hexdigest()
            raise _invalid_token(request, services, claimed_id, f"this access token {why}", digest)
        return _caller_of_token(request, services, token)
    if session := session_of(request, services):
        if request.method not in SAFE_METHODS:
            _check_csrf(request, session)
        _note(lambda: services.sessions.record_use(session, services.clock.now()))
        return _caller_of_token(request, services, services.access_tokens.get(session.token_id))
    if reason := local_owner_refusal(request):
        raise Unauthenticated(reason)
    if not services.trusts_loopback():
        raise Unauthenticated(
            "an access token is required, as this service has users; run holdfast login, or set HOLDFAST_TOKEN"
        )
    return OWNER


def _caller_of_token(request: Request, services: Services, token: Token) -> Caller:
    """Return the caller of a stored token if it is still valid."""
    now = services.clock.now()
    if reason := token.refusal(now):
        raise _invalid_token(
            request, services, token.id, f"this access token {reason}; create another one"
        )
    try:
        caller = services.users.caller(token)
    except Unauthenticated as error:
        raise _invalid_token(request, services, token.id, error.detail) from error
    _note(lambda: services.access_tokens.record_use(token, now))
    return caller


def _note(use: Callable[[], None]) -> None:
    with suppress(StoreUnavailable):  # A request that only reads need not wait for a writer.
        use()


def _check_csrf(request: Request, session: Session) -> None:
    """Check that a request with a cookie comes from the service's own page.

    Other pages can also send the cookie.
    """
    csrf = request.headers.get("x-csrf-token", "")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    scheme = "https" if is_secure(request) else "http"
    own = origin == f"{scheme}://{request.headers.get('host', '')}"
    is_ours = (site or origin) and site in {None, "same-origin"} and (own or origin is None)
    if not is_ours or not hmac.compare_digest(csrf.encode(), session.csrf.encode()):
        raise Forbidden(
            "a session may change data only from its own page, with its X-CSRF-Token; log in again"
        )


def _authorize(request: Request, services: Services, caller: Caller, action: Action) -> None:
    place = request.path_params
    project: str | None = place.get("project")
    if ACTION_REQUIREMENTS[action].role and "job_id" in place:
        job_id: str = place["job_id"]
        project = services.project_seen(caller, job_id)
        if project is None:
            project = _project_of_removed(services, caller, job_id, action)
    caller.require(action, project)


def _project_of_removed(services: Services, caller: Caller, job_id: str, action: Action) -> str:
    """Return the project of a removed job to a caller who removes it again.

    Raises:
        NotFound: the request is for another action, or the job was not removed as far as the caller may know.
    """
    removal = services.removals.find(job_id)
    if removal is None or not caller.may_see(removal.project):
        raise NotFound(f"there is no job {job_id}")
    if action is not Action.REMOVE:
        raise NotFound(removal.message)
    return removal.project


def _invalid_token(
    request: Request, services: Services, token_id: str, why: str, text_digest: str = ""
) -> Unauthenticated | TooManyRequests:
    """Return the refusal of a wrong token, or TooManyRequests after many wrong tokens.

    They are counted for each token, and in total. Valid tokens are never counted. Wrong tokens of
    others at the same address do not hide the reason for this one.
    """
    address = _address(request) or "nowhere"
    taken = [
        services.rate_limiter.acquire(LimitClass.FAIL, f"{address}/{text_digest or token_id}"),
        services.rate_limiter.acquire(LimitClass.GUESS, address),
    ]
    note_refused(request, services, token_id, why)
    for one in taken:
        if not one.is_allowed:
            return _too_many_requests(request, one, "this address sent too many wrong tokens")
    return Unauthenticated(why)


def note_refused(request: Request, services: Services, target: str, why: str) -> None:
    """Record a refused sign-in in the audit log, unless very many were refused just before."""
    if services.rate_limiter.acquire(LimitClass.NOTE, "").is_allowed:
        actor = Actor(name="", address=_address(request), request_id=request.state.request_id)
        action = actor.audit_action("login.refused", target, after={"why": why})
        _note(lambda: services.audit.record(action))


def _check_rate_limit(
    request: Request, services: Services, kind: LimitClass, caller: str | None
) -> None:
    if caller is None:
        return
    taken = services.rate_limiter.acquire(kind, caller)
    request.state.traffic = taken
    if not taken.is_allowed:
        names = {
            LimitClass.SPEND: "submissions",
            LimitClass.REPORT: "reports",
            LimitClass.SIGN_IN: "requests of sign-ins",
        }
        what = names.get(kind, "requests")
        raise _too_many_requests(request, taken, f"more than {taken.limit} {what} in a minute")


def _too_many_requests(request: Request, taken: RateLimitResult, why: str) -> TooManyRequests:
    request.state.traffic = taken
    wait_s = taken.retry_after_s
    return TooManyRequests(f"{why}; try again in {wait_s} s", retry_after_s=wait_s)


def _rate_limit_key(caller: Caller) -> str | None:
    """Return the key under which requests are counted; None for the owner, who is not limited."""
    return f"user/{caller.name}" if caller.name else None


def _address(request: Request) -> str | None:
    """Return the source address of a request, truncated, as a proxy may send any text."""
    return request.client.host[:64] if request.client else None


def _bearer(authorization: str | None) -> str | None:
    if not authorization:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("write the Authorization header as `Bearer` and a token")
    return token.strip()
