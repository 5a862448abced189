"""Sessions of browsers: a cookie that no script can read, instead of a token that one would have to keep."""

from __future__ import annotations

from fastapi import Request, Response

from holdfast.api.auth import (
    TheCaller,
    TheDoer,
    cookie_of,
    is_secure,
    session_of,
)
from holdfast.api.loopback import is_here
from holdfast.api.people_schemas import SessionOut
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.domain.rights import Caller
from holdfast.errors import NotFound, NotPossibleNow
from holdfast.store.sessions import Session

router = Router(prefix="/v1/session", tags=["people"])


@router.post("", status_code=201, response_model=SessionOut)
def log_in(
    request: Request, response: Response, services: The, caller: TheCaller, doer: TheDoer
) -> SessionOut:
    """Begin a session with the token of this request. Its cookie stands for the token from now on."""
    if caller.token_id is None:
        raise NotPossibleNow("a session begins with a token; on this machine none is needed")
    name, secure = cookie_of(request), is_secure(request)
    if not secure and not is_here(request):
        raise NotPossibleNow("a session needs https, except on the service's own machine")
    text, session = services.sessions.begin(
        caller.token_id, services.clock.now(), doer, instead_of=request.cookies.get(name)
    )
    response.set_cookie(name, text, path="/", secure=secure, httponly=True, samesite="lax")
    return _view(session, caller)


@router.get("", response_model=SessionOut)
def show_session(request: Request, services: The, caller: TheCaller) -> SessionOut:
    """The session of the cookie, for a page that was loaded anew."""
    session = session_of(request, services)
    if session is None or session.token_id != caller.token_id:
        raise NotFound("there is no session here; POST /v1/session begins one")
    return _view(session, caller)


@router.delete("", status_code=204, response_class=Response)
def log_out(request: Request, services: The, doer: TheDoer) -> Response:
    """End the session of the cookie."""
    if session := session_of(request, services):
        services.sessions.end(session, services.clock.now(), doer)
    answer = Response(status_code=204)
    name, secure = cookie_of(request), is_secure(request)
    answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="lax")
    return answer


def _view(session: Session, caller: Caller) -> SessionOut:
    return SessionOut(user=caller.name or None, csrf=session.csrf, ends_at=session.ends_at)
