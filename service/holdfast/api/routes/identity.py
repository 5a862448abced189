"""Projects, and who is what in them.

Sessions of browsers: a cookie that no script can read, instead of a token that one would have to keep.

Access tokens: everybody's own, and those of all for admins of the service. No token makes one that may do more.

Users of the service; only its admins see and change them.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request, Response

from holdfast.api.auth.authentication import TheCaller, TheDoer, cookie_of, is_secure, session_of
from holdfast.api.auth.local_access import is_here
from holdfast.api.auth.route_policy import may
from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.identity import (
    CurrentUserOut,
    MemberIn,
    MemberOut,
    NewTokenOut,
    ProjectChange,
    ProjectIn,
    ProjectName,
    ProjectOut,
    SessionOut,
    TokenIn,
    TokenOut,
    UserChange,
    UserIn,
    UserName,
    UserOut,
)
from holdfast.domain.access.permissions import Action, Caller, Role, TokenScope
from holdfast.errors import BadRequest, Forbidden, NotFound, NotPossibleNow
from holdfast.services import Services
from holdfast.store.identity.access_tokens import NewToken, Token
from holdfast.store.identity.sessions import Session
from holdfast.store.identity.users import Project, User

members_router = Router(prefix="/v1/projects", tags=["people"])


@members_router.get("", response_model=list[ProjectOut])
def list_projects(services: The, caller: TheCaller) -> list[ProjectOut]:
    """The projects that the caller is in, by name; all of them for an admin of the service."""
    return [_member_view(project, caller) for project in services.people.projects(caller.sees)]


@members_router.post("", status_code=201, response_model=ProjectOut)
def add_project(body: ProjectIn, services: The, caller: TheCaller, doer: TheDoer) -> ProjectOut:
    """Make a project, with nobody in it."""
    return _member_view(services.people.add_project(body.name, doer), caller)


@members_router.patch("/{project}", response_model=ProjectOut)
def change_project(
    project: ProjectName, body: ProjectChange, services: The, caller: TheCaller, doer: TheDoer
) -> ProjectOut:
    """Archive a project, so that it takes no new jobs, or take it back."""
    changed = services.people.archive_project(project, is_archived=body.is_archived, doer=doer)
    return _member_view(changed, caller)


@members_router.get("/{project}/members", response_model=list[MemberOut])
def list_members(project: ProjectName, services: The) -> list[MemberOut]:
    """Who is in a project, by name."""
    services.people.project(project)
    return [
        MemberOut(project=member.project, user=member.user, role=member.role.value)
        for member in services.people.members(project)
    ]


@members_router.put("/{project}/members/{user}", response_model=MemberOut)
def set_member(
    project: ProjectName, user: UserName, body: MemberIn, services: The, doer: TheDoer
) -> MemberOut:
    """Take a user into a project, or give them another role there."""
    services.people.set_member(project, user, Role(body.role), doer)
    return MemberOut(project=project, user=user, role=body.role)


@members_router.delete("/{project}/members/{user}", status_code=204, response_class=Response)
def remove_member(project: ProjectName, user: UserName, services: The, doer: TheDoer) -> Response:
    """Take a user out of a project; their jobs stay, and go on."""
    services.people.set_member(project, user, None, doer)
    return Response(status_code=204)


def _member_view(project: Project, caller: Caller) -> ProjectOut:
    role = caller.roles.get(project.name)
    return ProjectOut(
        name=project.name,
        created_at=project.created_at,
        archived_at=project.archived_at,
        role=role.value if role else None,
        can=may(caller, project.name),
    )


sessions_router = Router(prefix="/v1/session", tags=["people"])


@sessions_router.post("", status_code=201, response_model=SessionOut)
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
    return _session_view(session, caller)


@sessions_router.get("", response_model=SessionOut)
def show_session(request: Request, services: The, caller: TheCaller) -> SessionOut:
    """The session of the cookie, for a page that was loaded anew."""
    session = session_of(request, services)
    if session is None or session.token_id != caller.token_id:
        raise NotFound("there is no session here; POST /v1/session begins one")
    return _session_view(session, caller)


@sessions_router.delete("", status_code=204, response_class=Response)
def log_out(request: Request, services: The, doer: TheDoer) -> Response:
    """End the session of the cookie."""
    if session := session_of(request, services):
        services.sessions.end(session, services.clock.now(), doer)
    answer = Response(status_code=204)
    name, secure = cookie_of(request), is_secure(request)
    answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="lax")
    return answer


def _session_view(session: Session, caller: Caller) -> SessionOut:
    return SessionOut(user=caller.name or None, csrf=session.csrf, ends_at=session.ends_at)


tokens_router = Router(prefix="/v1/tokens", tags=["people"])


@tokens_router.get("", response_model=list[TokenOut])
def list_tokens(
    services: The,
    caller: TheCaller,
    everybodys: Annotated[
        bool, Query(description="Those of all people; only for admins of the service.")
    ] = False,
) -> list[TokenOut]:
    """The caller's tokens, newest first; no answer has their text."""
    if everybodys:
        caller.require(Action.MANAGE_SERVICE)
    tokens = services.keyring.all(caller.name or None, of_all=everybodys)
    return [
        _token_view(services, token) for token in tokens if caller.only in {None, token.project}
    ]


@tokens_router.post("", status_code=201, response_model=NewTokenOut)
def add_token(body: TokenIn, services: The, caller: TheCaller, doer: TheDoer) -> NewTokenOut:
    """Make a token, which ends no later than the one of this request. Its text is in this answer, and in no other."""
    user = body.user or caller.name or None
    if user != (caller.name or None):
        caller.require(Action.MANAGE_SERVICE)
        if user not in {known.name for known in services.people.users()}:
            raise NotFound(f"there is no user {user}; make one first: holdfast users add")
    project = body.project or caller.only
    if project is not None:
        caller.require(Action.SEE, project)
        services.people.project(project)
    scopes = frozenset(TokenScope(word) for word in body.scopes)
    _check_scopes(caller, scopes)
    wish = NewToken(
        name=body.name,
        user=user,
        project=project,
        scopes=scopes,
        lasts=timedelta(days=body.days),
        parent=caller.token_id,
    )
    text, token = services.keyring.make(wish, services.clock.now(), doer)
    return NewTokenOut(token=text, kept=_token_view(services, token))


@tokens_router.post("/{token_id}/rotate", status_code=201, response_model=NewTokenOut)
def rotate_token(token_id: str, services: The, caller: TheCaller, doer: TheDoer) -> NewTokenOut:
    """Make a token like this one, which goes on for 24 hours and then lets in no more."""
    old = _mine(services, caller, token_id)
    _check_scopes(caller, old.scopes)
    text, token = services.keyring.rotate(token_id, services.clock.now(), doer)
    return NewTokenOut(token=text, kept=_token_view(services, token))


@tokens_router.delete("/{token_id}", response_model=TokenOut)
def revoke_token(token_id: str, services: The, caller: TheCaller, doer: TheDoer) -> TokenOut:
    """Revoke a token, the sessions that began with it, and the tokens that were made with it. They let nobody in from now on."""
    _mine(services, caller, token_id)
    return _token_view(services, services.keyring.revoke(token_id, services.clock.now(), doer))


def _mine(services: Services, caller: Caller, token_id: str) -> Token:
    """A token that the caller may change."""
    token = services.keyring.get(token_id)
    own = token.user == (caller.name or None) and caller.only in {None, token.project}
    if not own and not caller.may(Action.MANAGE_SERVICE):
        raise NotFound(f"there is no token {token_id}")
    return token


def _check_scopes(caller: Caller, scopes: frozenset[TokenScope]) -> None:
    if more := scopes - caller.scopes:
        raise Forbidden(
            f"scopes: a token makes none that may do more; yours has no scope {min(more)}"
        )


def _token_view(services: Services, token: Token) -> TokenOut:
    return TokenOut(
        id=token.id,
        name=token.name,
        user=token.user,
        project=token.project,
        scopes=[scope.value for scope in sorted(token.scopes)],
        created_at=token.created_at,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        revoked_at=token.revoked_at,
        replaced_by=token.replaced_by,
        is_good=not token.refusal(services.clock.now()),
    )


users_router = Router(prefix="/v1", tags=["people"])


@users_router.get("/whoami", response_model=CurrentUserOut)
def show_caller(services: The, caller: TheCaller) -> CurrentUserOut:
    """Who one is, and what one may do."""
    return CurrentUserOut(
        user=caller.name or None,
        is_admin=caller.is_admin,
        roles={project: role.value for project, role in sorted(caller.roles.items())},
        scopes=[scope.value for scope in sorted(caller.scopes)],
        token_id=caller.token_id,
        project=caller.only,
        demo_seed=services.demo_seed,
        can=may(caller),
    )


@users_router.get("/users", response_model=list[UserOut])
def list_users(services: The) -> list[UserOut]:
    """Everybody, by name."""
    return [_user_view(user) for user in services.people.users()]


@users_router.post("/users", status_code=201, response_model=UserOut)
def add_user(body: UserIn, services: The, doer: TheDoer) -> UserOut:
    """Make a user, who is in no project and has no token yet."""
    if body.name == "owner":
        raise BadRequest("name: `owner` is what the owner of the service is called; write another")
    return _user_view(services.people.add_user(body.name, is_admin=body.is_admin, doer=doer))


@users_router.patch("/users/{user}", response_model=UserOut)
def change_user(user: UserName, body: UserChange, services: The, doer: TheDoer) -> UserOut:
    """Make somebody an admin or not, or keep them out or let them in again."""
    changed = services.people.change_user(
        user, is_admin=body.is_admin, is_disabled=body.is_disabled, doer=doer
    )
    return _user_view(changed)


def _user_view(user: User) -> UserOut:
    return UserOut(**asdict(user))
