"""Users, projects and members: valid and invalid changes, all of them in the audit log."""

from __future__ import annotations

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Role, TokenScope
from holdfast.errors import Conflict, NotFound, NotPossibleNow, Unauthenticated
from holdfast.store.audit_log import AuditLog
from holdfast.store.identity.access_tokens import AccessTokens, NewToken
from holdfast.store.identity.users import Users
from sqlalchemy import Engine
from support.events import DAWN
from support.fakes import FixedClock

BOSS = Actor(name="boss", token_id="t1", address="192.0.2.1", request_id="r1")


@pytest.fixture
def people(engine: Engine, clock: FixedClock) -> Users:
    return Users(engine, clock)


@pytest.fixture
def audit(engine: Engine, clock: FixedClock) -> AuditLog:
    return AuditLog(engine, clock)


def test_default_project_exists_initially(people: Users) -> None:
    (project,) = people.projects()

    assert (project.name, project.archived_at) == ("default", None)
    assert project.created_at.tzinfo is not None
    assert not people.has_users()


def test_names_are_unique(people: Users) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)
    people.add_project("nlp", BOSS)

    with pytest.raises(Conflict, match="ada"):
        people.add_user("ada", is_admin=True, actor=BOSS)
    with pytest.raises(Conflict, match="nlp"):
        people.add_project("nlp", BOSS)
    assert people.has_users()


def test_a_member_has_one_role_in_a_project_until_they_leave(people: Users) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)
    people.add_project("nlp", BOSS)

    people.set_member("nlp", "ada", Role.VIEWER, BOSS)
    people.set_member("nlp", "ada", Role.ADMIN, BOSS)
    inside = people.members("nlp")
    people.set_member("nlp", "ada", None, BOSS)

    assert [(member.user, member.role) for member in inside] == [("ada", Role.ADMIN)]
    assert people.members("nlp") == []
    with pytest.raises(NotFound, match="not in project"):
        people.set_member("nlp", "ada", None, BOSS)


def test_unknown_user_or_project_is_not_found(people: Users) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)

    with pytest.raises(NotFound, match="no project nlp"):
        people.set_member("nlp", "ada", Role.MEMBER, BOSS)
    with pytest.raises(NotFound, match="no user bob"):
        people.set_member("default", "bob", Role.MEMBER, BOSS)
    with pytest.raises(NotFound):
        people.change_user("bob", is_admin=True, is_disabled=None, actor=BOSS)


def test_disabled_user_has_no_valid_token_and_gets_no_role(people: Users, engine: Engine) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)
    keyring = AccessTokens(engine, b"key")
    _, token = keyring.create(NewToken(name="laptop", user="ada"), DAWN)

    people.change_user("ada", is_admin=None, is_disabled=True, actor=BOSS)

    assert keyring.get(token.id).refusal(DAWN)
    with pytest.raises(Unauthenticated, match="disabled"):
        people.caller(token)
    with pytest.raises(NotPossibleNow, match="disabled"):
        people.set_member("default", "ada", Role.MEMBER, BOSS)
    people.change_user("ada", is_admin=None, is_disabled=False, actor=BOSS)
    assert keyring.get(token.id).refusal(DAWN), "a token that was revoked stays so"


def test_caller_has_current_user_rights_limited_by_token(people: Users, engine: Engine) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)
    people.set_member("default", "ada", Role.MEMBER, BOSS)
    keyring = AccessTokens(engine, b"key")
    request = NewToken(name="ci", user="ada", scopes=[TokenScope.READ], project="default")
    _, token = keyring.create(request, DAWN)

    before = people.caller(token)
    people.change_user("ada", is_admin=True, is_disabled=None, actor=BOSS)
    after = people.caller(token)

    assert (before.name, before.roles, before.is_admin) == ("ada", {"default": Role.MEMBER}, False)
    assert (before.scopes, before.only) == ({TokenScope.READ}, "default")
    assert after.is_admin


def test_only_effective_changes_are_audited(people: Users, audit: AuditLog) -> None:
    people.add_user("ada", is_admin=False, actor=BOSS)
    people.change_user("ada", is_admin=False, is_disabled=False, actor=BOSS)
    people.change_user("ada", is_admin=True, is_disabled=None, actor=BOSS)
    people.add_project("nlp", BOSS)
    people.set_member("nlp", "ada", Role.VIEWER, BOSS)
    people.set_member("nlp", "ada", Role.VIEWER, BOSS)
    people.set_member("nlp", "ada", None, BOSS)
    people.archive_project("nlp", is_archived=True, actor=BOSS)
    people.archive_project("nlp", is_archived=True, actor=BOSS)

    found = [
        (e.audit_action.action, e.audit_action.target, e.audit_action.before, e.audit_action.after)
        for e in audit.page(limit=99)
    ]

    assert found == [
        ("project.change", "nlp", {"is_archived": False}, {"is_archived": True}),
        ("member.remove", "nlp/ada", {"role": "viewer"}, None),
        ("member.set", "nlp/ada", None, {"role": "viewer"}),
        ("project.add", "nlp", None, {}),
        (
            "user.change",
            "ada",
            {"is_admin": False, "is_disabled": False},
            {"is_admin": True, "is_disabled": False},
        ),
        ("user.add", "ada", None, {"is_admin": False}),
    ]
    assert {entry.audit_action.actor for entry in audit.page(limit=99)} == {BOSS}
    assert audit.verify().broken_seq is None
