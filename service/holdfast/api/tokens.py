"""Access tokens: everybody's own, and those of all for admins of the service. No token makes one that may do more."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.people_schemas import NewTokenOut, TokenIn, TokenOut
from holdfast.api.routing import Router
from holdfast.api.services import Services, The
from holdfast.domain.rights import Action, Caller, Scope
from holdfast.errors import Forbidden, NotFound
from holdfast.store.keyring import Token, Wish

router = Router(prefix="/v1/tokens", tags=["people"])


@router.get("", response_model=list[TokenOut])
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
    return [_view(services, token) for token in tokens if caller.only in {None, token.project}]


@router.post("", status_code=201, response_model=NewTokenOut)
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
    scopes = frozenset(Scope(word) for word in body.scopes)
    _check_scopes(caller, scopes)
    wish = Wish(
        name=body.name,
        user=user,
        project=project,
        scopes=scopes,
        lasts=timedelta(days=body.days),
        parent=caller.token_id,
    )
    text, token = services.keyring.make(wish, services.clock.now(), doer)
    return NewTokenOut(token=text, kept=_view(services, token))


@router.post("/{token_id}/rotate", status_code=201, response_model=NewTokenOut)
def rotate_token(token_id: str, services: The, caller: TheCaller, doer: TheDoer) -> NewTokenOut:
    """Make a token like this one, which goes on for 24 hours and then lets in no more."""
    old = _mine(services, caller, token_id)
    _check_scopes(caller, old.scopes)
    text, token = services.keyring.rotate(token_id, services.clock.now(), doer)
    return NewTokenOut(token=text, kept=_view(services, token))


@router.delete("/{token_id}", response_model=TokenOut)
def revoke_token(token_id: str, services: The, caller: TheCaller, doer: TheDoer) -> TokenOut:
    """Revoke a token, the sessions that began with it, and the tokens that were made with it. They let nobody in from now on."""
    _mine(services, caller, token_id)
    return _view(services, services.keyring.revoke(token_id, services.clock.now(), doer))


def _mine(services: Services, caller: Caller, token_id: str) -> Token:
    """A token that the caller may change."""
    token = services.keyring.get(token_id)
    own = token.user == (caller.name or None) and caller.only in {None, token.project}
    if not own and not caller.may(Action.MANAGE_SERVICE):
        raise NotFound(f"there is no token {token_id}")
    return token


def _check_scopes(caller: Caller, scopes: frozenset[Scope]) -> None:
    if more := scopes - caller.scopes:
        raise Forbidden(
            f"scopes: a token makes none that may do more; yours has no scope {min(more)}"
        )


def _view(services: Services, token: Token) -> TokenOut:
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
