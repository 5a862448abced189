"""Permissions of roles, and their restriction by the scopes of a token."""

from __future__ import annotations

import itertools

import pytest
from holdfast.domain.access.permissions import (
    ACTION_REQUIREMENTS,
    ANONYMOUS,
    OWNER,
    Action,
    Caller,
    Role,
    TokenScope,
)
from holdfast.errors import Forbidden, HoldfastError, NotFound
from support.tables import for_each

ROLES = [None, *Role]


def caller(role: Role | None, **more: object) -> Caller:
    roles = {} if role is None else {"nlp": role}
    return Caller(name="ada", roles=roles, **more)


def test_every_action_has_a_required_permission() -> None:
    assert set(ACTION_REQUIREMENTS) == set(Action)


@for_each(Action)
def test_higher_role_includes_lower_ones(action: Action) -> None:
    may = [caller(role).may(action, "nlp") for role in ROLES]

    assert may == sorted(may)
    assert OWNER.may(action, "nlp")
    assert not ANONYMOUS.may(action, "nlp")


@for_each(action for action in Action if ACTION_REQUIREMENTS[action].role)
def test_role_applies_to_its_own_project_only(action: Action) -> None:
    assert not caller(Role.ADMIN).may(action, "vision")
    assert not caller(Role.ADMIN).may(action)
    with pytest.raises(NotFound, match="no project vision"):
        caller(Role.ADMIN).require(action, "vision")


@for_each(itertools.product(Action, ROLES, [None, "nlp", "vision"]))
def test_token_never_exceeds_its_user(
    scope_case: tuple[Action, Role | None, str | None],
) -> None:
    """For all scopes: a narrower token has a subset of its user's permissions."""
    action, role, only = scope_case
    whole = caller(role)
    for count in range(4):
        for scopes in itertools.combinations(TokenScope, count):
            narrow = caller(role, scopes=frozenset(scopes), only=only)
            assert not narrow.may(action, "nlp") or whole.may(action, "nlp")
            assert ACTION_REQUIREMENTS[action].scope in scopes or not narrow.may(action, "nlp")


@for_each(itertools.product(Action, ROLES, [False, True], [None, "nlp", "vision"]))
def test_exactly_the_disallowed_actions_are_refused(
    scope_case: tuple[Action, Role | None, bool, str | None],
) -> None:
    action, role, admin, only = scope_case
    user = caller(role, is_admin=admin, only=only)

    refusal = _expected_error(user, action)

    assert (refusal is None) is (user.may(action, "nlp") and user.may_see("nlp"))
    # A caller cannot see that an invisible project exists; otherwise the missing permission is
    # named.
    if refusal:
        assert refusal is (Forbidden if user.may(Action.SEE, "nlp") else NotFound)


def _expected_error(user: Caller, action: Action) -> type[HoldfastError] | None:
    try:
        user.require(action, "nlp")
    except HoldfastError as error:
        return type(error)
    return None


def test_confined_admin_has_rights_in_one_project_only() -> None:
    user = Caller(name="ada", is_admin=True, only="nlp")

    assert user.may(Action.MANAGE_MEMBERS, "nlp")
    assert not user.may(Action.SEE, "vision")
    assert not user.may(Action.MANAGE_SERVICE)
    assert user.visible_projects == {"nlp"}


def test_visible_projects_follow_roles_and_scopes() -> None:
    both = Caller(name="ada", roles={"nlp": Role.VIEWER, "vision": Role.ADMIN})

    assert both.visible_projects == {"nlp", "vision"}
    assert OWNER.visible_projects is None
    assert caller(Role.ADMIN, only="vision").visible_projects == frozenset()
    assert caller(Role.ADMIN, scopes=frozenset({TokenScope.WRITE})).visible_projects == frozenset()


def test_job_without_a_project_gets_the_implied_one() -> None:
    viewer_too = Caller(name="ada", roles={"nlp": Role.MEMBER, "vision": Role.VIEWER})
    both = Caller(name="ada", roles={"nlp": Role.MEMBER, "vision": Role.MEMBER})

    homes = [user.default_project(Action.SUBMIT, "default") for user in (viewer_too, both, OWNER)]

    assert homes == ["nlp", "default", "default"]


def test_members_remove_own_jobs_and_admins_any() -> None:
    member, admin = caller(Role.MEMBER), caller(Role.ADMIN)

    assert member.may_remove("nlp", "ada")
    assert not member.may_remove("nlp", "bob")
    assert not member.may_remove("nlp", "")
    assert not caller(Role.VIEWER).may_remove("nlp", "ada")
    assert not admin.may_remove("vision", "ada")
    assert admin.may_remove("nlp", "bob")
    assert OWNER.may_remove("nlp", "")
