"""Sign-in through the identity provider: of browsers, and of the command line with a code.

A browser visits two addresses: `/sign-in` leads to the provider, and the provider leads it back to `/sign-in/callback`. Both
answer with a redirect to a page of the dashboard in every case. The reason of a failure is in an encrypted cookie, so that
no address can make the dashboard display a text.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from holdfast.api.auth.authentication import (
    actor_of,
    cookie_of,
    count_sign_in,
    is_secure,
    note_refused,
)
from holdfast.api.auth.local_access import is_here
from holdfast.api.auth.route_policy import PAGES
from holdfast.api.dependencies import TheServices
from holdfast.api.routes.identity import token_view
from holdfast.api.routing import Router
from holdfast.api.schemas.identity import (
    DevicePollIn,
    DevicePollOut,
    DeviceSignInOut,
    NewTokenOut,
    SignInOptionsOut,
)
from holdfast.domain.access.permissions import ANONYMOUS, Caller
from holdfast.errors import Forbidden, HoldfastError, NotFound, NotPossibleNow
from holdfast.services import Services
from holdfast.single_sign_on.accounts import StillPending
from holdfast.single_sign_on.flows import (
    ATTEMPT,
    FAILURE,
    CompletedSignIn,
    RequestOrigin,
    SingleSignOn,
)

router = Router(prefix="/v1/sign-in", tags=["people"])
browser_router = Router(prefix="/sign-in", include_in_schema=False)

MAX_ATTEMPTS: Final = 4
"""Sign-ins of one browser in progress. With a lower value, a tab ends the sign-in of another one; with a higher value, their
cookies may exceed the size of a request."""
MAX_RETURN: Final = 300
"""Length of an address within the dashboard to which a sign-in leads back. It is part of a cookie: with a higher value, proxies
may refuse the requests of a browser with several sign-ins in progress."""
REFUSED: Final = "single sign-on"
"""Target of refused sign-ins in the audit log, whose account may be unknown."""
_PAGE: Final = re.compile("|".join(re.sub(r"\{\w+\}", "[A-Za-z0-9_-]+", page) for page in PAGES))
_QUERY: Final = re.compile(r"[A-Za-z0-9_.~!$&'()*+,;=:@/?%-]*")
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{8,128}")


@browser_router.get("")
def start(request: Request, services: TheServices, return_to: str = "/") -> Response:
    """Lead a browser to the identity provider, and later back to a page of the dashboard."""
    try:
        count_sign_in(request, services)
        single_sign_on = _configured(services)
        _check_transport(request)
        scheme = "https" if is_secure(request) else "http"
        callback = f"{scheme}://{request.headers.get('host', '')}/sign-in/callback"
        started = single_sign_on.start(callback, own_page(return_to))
    except HoldfastError as error:
        return _failed(request, services, error)
    answer = _redirect(started.url)
    mine = [name for name in request.cookies if name.startswith(_attempt_cookie(request, ""))]
    for name in mine if len(mine) >= MAX_ATTEMPTS else ():
        _forget(request, answer, name)
    _keep(request, answer, _attempt_cookie(request, started.state), started.sealed, ATTEMPT)
    return answer


@browser_router.get("/callback")
def finish(request: Request, services: TheServices) -> Response:
    """Start a session for an account that the provider confirms."""
    state = request.query_params.get("state", "")
    cookie = _attempt_cookie(request, state if _STATE.fullmatch(state) else "")
    try:
        count_sign_in(request, services)
        single_sign_on = _configured(services)
        _check_transport(request)
        sealed = request.cookies.get(cookie)
        done = single_sign_on.finish(sealed, dict(request.query_params), _origin(request))
        answer = _redirect(own_page(done.return_to))
        _start_session(request, answer, services, done)
    except HoldfastError as error:
        if isinstance(error, Forbidden):
            note_refused(request, services, REFUSED, error.detail)
        answer = _failed(request, services, error)
    if cookie in request.cookies:
        _forget(request, answer, cookie)
    return answer


@router.get("", response_model=SignInOptionsOut)
def show_options(request: Request, response: Response, services: TheServices) -> SignInOptionsOut:
    """Show the identity provider, and why the last sign-in of this browser failed."""
    single_sign_on = services.single_sign_on
    if single_sign_on is None:
        return SignInOptionsOut(provider=None, failure=None)
    cookie = _failure_cookie(request)
    failure = single_sign_on.open("failure", request.cookies.get(cookie))
    response.headers["Cache-Control"] = "no-store"
    return SignInOptionsOut(
        provider=single_sign_on.provider.name, failure=failure["why"] if failure else None
    )


@router.post("/device", status_code=201, response_model=DeviceSignInOut)
def start_device(request: Request, services: TheServices) -> DeviceSignInOut:
    """Start a sign-in that a person completes in a browser on any machine, by entering a code."""
    count_sign_in(request, services)
    code, handle = _configured(services).start_device()
    return DeviceSignInOut(
        handle=handle,
        user_code=code.user_code,
        verification_uri=code.verification_uri,
        verification_uri_complete=code.verification_uri_complete,
        expires_in_s=code.expires_in_s,
        interval_s=code.interval_s,
    )


@router.post("/device/token", response_model=DevicePollOut)
def poll_device(body: DevicePollIn, request: Request, services: TheServices) -> DevicePollOut:
    """Return the token of such a sign-in once it is completed. It is returned only once."""
    count_sign_in(request, services)
    try:
        result = _configured(services).poll_device(body.handle, _origin(request))
    except Forbidden as error:
        note_refused(request, services, REFUSED, error.detail)
        raise
    if isinstance(result, StillPending):
        return DevicePollOut(token=None, slow_down=result.slows_down)
    kept = token_view(services, result.token)
    return DevicePollOut(token=NewTokenOut(token=result.text, kept=kept), slow_down=False)


def own_page(address: str) -> str:
    """Return an address if it is a page of the dashboard, and otherwise that of its first page.

    Everything else, such as `//host` or `/\\host`, might lead to another site.
    """
    path, _, query = address.partition("?")
    is_ours = len(address) <= MAX_RETURN and _PAGE.fullmatch(path) and _QUERY.fullmatch(query)
    return address if is_ours else "/"


def _configured(services: Services) -> SingleSignOn:
    if services.single_sign_on is None:
        raise NotFound(
            "this service has no single sign-on; sign in with an access token (an admin sets HOLDFAST_OIDC_ISSUER)"
        )
    return services.single_sign_on


def _check_transport(request: Request) -> None:
    if not is_secure(request) and not is_here(request):
        raise NotPossibleNow("a sign-in requires https, except on the service's own machine")


def _start_session(
    request: Request, answer: Response, services: Services, done: CompletedSignIn
) -> None:
    user, token_id = done.token.user, done.token.id
    assert user is not None, "the owner does not sign in through a provider"
    name = cookie_of(request)
    actor = actor_of(request, Caller(name=user, token_id=token_id))
    before = request.cookies.get(name)
    text, _ = services.sessions.start(token_id, services.clock.now(), actor, instead_of=before)
    secure = is_secure(request)
    answer.set_cookie(name, text, path="/", secure=secure, httponly=True, samesite="lax")


def _failed(request: Request, services: Services, error: HoldfastError) -> Response:
    answer = _redirect("/")
    if single_sign_on := services.single_sign_on:
        sealed = single_sign_on.seal("failure", {"why": error.detail[:1000]}, FAILURE)
        _keep(request, answer, _failure_cookie(request), sealed, FAILURE)
    return answer


def _redirect(address: str) -> Response:
    # The address of the callback contains a code, which no other page may read.
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return RedirectResponse(address, status_code=303, headers=headers)


def _attempt_cookie(request: Request, state: str) -> str:
    """Return the name of the cookie of one sign-in, so that several may be in progress."""
    return f"{cookie_of(request)}-sign-in-{state[:8]}"


def _failure_cookie(request: Request) -> str:
    return f"{cookie_of(request)}-failed-sign-in"


def _keep(request: Request, answer: Response, name: str, value: str, lasts: timedelta) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=int(lasts.total_seconds()),
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )


def _forget(request: Request, answer: Response, name: str) -> None:
    secure = is_secure(request)
    answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="lax")


def _origin(request: Request) -> RequestOrigin:
    actor = actor_of(request, ANONYMOUS)
    return RequestOrigin(address=actor.address, request_id=actor.request_id)
