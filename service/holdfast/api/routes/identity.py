"""Projects and members, browser sessions, access tokens, and users.

A session is a cookie that no script can read, so that the browser stores no token. A token cannot create one with more
permissions.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request, Response

from holdfast.api.auth.authentication import TheActor, TheCaller, cookie_of, is_secure, session_of
from holdfast.api.auth.local_access import is_here
from holdfast.api.auth.route_policy import allowed_actions
from holdfast.api.dependencies import TheServices
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
def list_projects(services: TheServices, caller: TheCaller) -> list[ProjectOut]:
    """List the caller's projects by name, or all for an admin of the service."""
    return [
        _member_view(project, caller)
        for project in services.users.projects(caller.visible_projects)
    ]


@members_router.post("", status_code=201, response_model=ProjectOut)
def add_project(
    body: ProjectIn, services: TheServices, caller: TheCaller, actor: TheActor
) -> ProjectOut:
    """Create a project without members."""
    return _member_view(services.users.add_project(body.name, actor), caller)


@members_router.patch("/{project}", response_model=ProjectOut)
def change_project(
    project: ProjectName,
    body: ProjectChange,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
) -> ProjectOut:
    """Archive a project so that it accepts no new jobs, or restore it."""
    changed = services.users.archive_project(project, is_archived=body.is_archived, actor=actor)
    return _member_view(changed, caller)


@members_router.get("/{project}/members", response_model=list[MemberOut])
def list_members(project: ProjectName, services: TheServices) -> list[MemberOut]:
    """List the members of a project by name."""
    services.users.project(project)
    return [
        MemberOut(project=member.project, user=member.user, role=member.role.value)
        for member in services.users.members(project)
    ]


@members_router.put("/{project}/members/{user}", response_model=MemberOut)
def set_member(
    project: ProjectName, user: UserName, body: MemberIn, services: TheServices, actor: TheActor
) -> MemberOut:
    """Add a user to a project, or change their role in it."""
    services.users.set_member(project, user, Role(body.role), actor)
    return MemberOut(project=project, user=user, role=body.role)


@members_router.delete("/{project}/members/{user}", status_code=204, response_class=Response)
def remove_member(
    project: ProjectName, user: UserName, services: TheServices, actor: TheActor
) -> Response:
    """Remove a user from a project; their jobs stay and continue."""
    services.users.set_member(project, user, None, actor)
    return Response(status_code=204)


def _member_view(project: Project, caller: Caller) -> ProjectOut:
    role = caller.roles.get(project.name)
    return ProjectOut(
        name=project.name,
        created_at=project.created_at,
        archived_at=project.archived_at,
        role=role.value if role else None,
        can=allowed_actions(caller, project.name),
    )


sessions_router = Router(prefix="/v1/session", tags=["people"])


@sessions_router.post("", status_code=201, response_model=SessionOut)
def log_in(
    request: Request, response: Response, services: TheServices, caller: TheCaller, actor: TheActor
) -> SessionOut:
    """Start a session with the token of this request. Its cookie replaces the token from now on."""
    if caller.token_id is None:
        raise NotPossibleNow("a session starts with a token; local access needs none")
    name, secure = cookie_of(request), is_secure(request)
    if not secure and not is_here(request):
        raise NotPossibleNow("a session requires https, except on the service's own machine")
    text, session = services.sessions.start(
        caller.token_id, services.clock.now(), actor, instead_of=request.cookies.get(name)
    )
    response.set_cookie(name, text, path="/", secure=secure, httponly=True, samesite="lax")
    return _session_view(session, caller)


@sessions_router.get("", response_model=SessionOut)
def show_session(request: Request, services: TheServices, caller: TheCaller) -> SessionOut:
    """Show the session of the cookie, for a reloaded page."""
    session = session_of(request, services)
    if session is None or session.token_id != caller.token_id:
        raise NotFound("this request has no session; start one with POST /v1/session")
    return _session_view(session, caller)


@sessions_router.delete("", status_code=204, response_class=Response)
def log_out(request: Request, services: TheServices, actor: TheActor) -> Response:
    """End the session of the cookie."""
    if session := session_of(request, services):
        services.sessions.end(session, services.clock.now(), actor)
    answer = Response(status_code=204)
    name, secure = cookie_of(request), is_secure(request)
    answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="lax")
    return answer


def _session_view(session: Session, caller: Caller) -> SessionOut:
    return SessionOut(user=caller.name or None, csrf=session.csrf, ends_at=session.ends_at)


tokens_router = Router(prefix="/v1/tokens", tags=["people"])


@tokens_router.get("", response_model=list[TokenOut])
def list_tokens(
    services: TheServices,
    caller: TheCaller,
    everybodys: Annotated[
        bool, Query(description="Tokens of all users; only for admins of the service.")
    ] = False,
) -> list[TokenOut]:
    """List the caller's tokens, newest first, without their text."""
    if everybodys:
        caller.require(Action.MANAGE_SERVICE)
    tokens = services.access_tokens.list_tokens(caller.name or None, of_all=everybodys)
    return [token_view(services, token) for token in tokens if caller.only in {None, token.project}]


@tokens_router.post("", status_code=201, response_model=NewTokenOut)
def add_token(
    body: TokenIn, services: TheServices, caller: TheCaller, actor: TheActor
) -> NewTokenOut:
    """Create a token that expires no later than the one of this request.

    Only this response contains its text.
    """
    user = body.user or caller.name or None
    if user != (caller.name or None):
        caller.require(Action.MANAGE_SERVICE)
        if user not in {known.name for known in services.users.users()}:
            raise NotFound(f"there is no user {user}; create one first with holdfast users add")
    project = body.project or caller.only
    if project is not None:
        caller.require(Action.SEE, project)
        services.users.project(project)
    scopes = frozenset(TokenScope(word) for word in body.scopes)
    _check_scopes(caller, scopes)
    request = NewToken(
        name=body.name,
        user=user,
        project=project,
        scopes=scopes,
        lifetime=timedelta(days=body.days),
        parent=caller.token_id,
    )
    text, token = services.access_tokens.create(request, services.clock.now(), actor)
    return NewTokenOut(token=text, kept=token_view(services, token))


@tokens_router.post("/{token_id}/rotate", status_code=201, response_model=NewTokenOut)
def rotate_token(
    token_id: str, services: TheServices, caller: TheCaller, actor: TheActor
) -> NewTokenOut:
    """Replace a token; the old one stays valid for 24 hours."""
    old = _mine(services, caller, token_id)
    _check_scopes(caller, old.scopes)
    text, token = services.access_tokens.rotate(token_id, services.clock.now(), actor)
    return NewTokenOut(token=text, kept=token_view(services, token))


@tokens_router.delete("/{token_id}", response_model=TokenOut)
def revoke_token(
    token_id: str, services: TheServices, caller: TheCaller, actor: TheActor
) -> TokenOut:
    """Revoke a token with the sessions and tokens that it created. All are refused from now on."""
    _mine(services, caller, token_id)
    return token_view(
        services, services.access_tokens.revoke(token_id, services.clock.now(), actor)
    )


def _mine(services: Services, caller: Caller, token_id: str) -> Token:
    """Return a token that the caller may change."""
    token = services.access_tokens.get(token_id)
    own = token.user == (caller.name or None) and caller.only in {None, token.project}
    if not own and not caller.may(Action.MANAGE_SERVICE):
        raise NotFound(f"there is no token {token_id}")
    return token


def _check_scopes(caller: Caller, scopes: frozenset[TokenScope]) -> None:
    if more := scopes - caller.scopes:
        raise Forbidden(
            f"scopes: a token cannot create one with more permissions; yours lacks the scope {min(more)}"
        )


def token_view(services: Services, token: Token) -> TokenOut:
    """Return a token without its text."""
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
def show_caller(services: TheServices, caller: TheCaller) -> CurrentUserOut:
    """Show the caller and their permissions."""
    return CurrentUserOut(
        user=caller.name or None,
        is_admin=caller.is_admin,
        roles={project: role.value for project, role in sorted(caller.roles.items())},
        scopes=[scope.value for scope in sorted(caller.scopes)],
        token_id=caller.token_id,
        project=caller.only,
        demo_seed=services.demo_seed,
        can=allowed_actions(caller),
    )


@users_router.get("/users", response_model=list[UserOut])
def list_users(services: TheServices) -> list[UserOut]:
    """List all users by name."""
    return [_user_view(user) for user in services.users.users()]


@users_router.post("/users", status_code=201, response_model=UserOut)
def add_user(body: UserIn, services: TheServices, actor: TheActor) -> UserOut:
    """Create a user, without projects and tokens."""
    if body.name == "owner":
        raise BadRequest("name: `owner` is reserved for the owner of the service; choose another")
    return _user_view(services.users.add_user(body.name, is_admin=body.is_admin, actor=actor))


@users_router.patch("/users/{user}", response_model=UserOut)
def change_user(
    user: UserName, body: UserChange, services: TheServices, actor: TheActor
) -> UserOut:
    """Change a user: the admin role, whether they are enabled, and the linked account."""
    if body.subject is not None:
        if (single_sign_on := services.single_sign_on) is None:
            raise NotPossibleNow(
                "subject: this service has no identity provider; set HOLDFAST_OIDC_ISSUER first"
            )
        single_sign_on.sign_ins.link(single_sign_on.issuer, user, body.subject, actor)
    changed = services.users.change_user(
        user, is_admin=body.is_admin, is_disabled=body.is_disabled, actor=actor
    )
    return _user_view(changed)


def _user_view(user: User) -> UserOut:
    return UserOut(**asdict(user))
