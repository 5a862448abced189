"""Users, projects and memberships.

Every change is recorded in the audit log, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, update

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Caller, Role
from holdfast.errors import Conflict, NotFound, NotPossibleNow, Unauthenticated
from holdfast.ports import Clock
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.identity import access_tokens
from holdfast.store.identity.access_tokens import Token
from holdfast.store.tables.identity import members, projects, users


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user of the service."""

    name: str
    is_admin: bool
    """Whether the user is an administrator of the service, with all permissions."""
    created_at: datetime
    disabled_at: datetime | None
    """None: enabled."""
    confirmed_until: datetime | None = None
    """When tokens stop unless the identity provider confirms the user; None: never."""

    def refusal(self, now: datetime) -> str:
        """Why tokens of the user are refused, as a sentence; empty if they are not."""
        if self.disabled_at is not None:
            return f"the user {self.name} is disabled"
        if self.confirmed_until is not None and self.confirmed_until <= now:
            return (
                f"the identity provider has not confirmed the user {self.name} since "
                f"{self.confirmed_until:%Y-%m-%d %H:%M}Z; sign in again with holdfast login --sso, or in the dashboard"
            )
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project, to which jobs, members and budgets belong."""

    name: str
    created_at: datetime
    archived_at: datetime | None
    """None: it accepts new jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """The role of a user in a project."""

    project: str
    user: str
    role: Role


class Users:
    """All users, projects and memberships."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def has_users(self) -> bool:
        """Whether there are users."""
        with reading(self._engine) as connection:
            return connection.execute(select(users.c.name).limit(1)).first() is not None

    def caller(self, token: Token) -> Caller:
        """The caller with a token.

        Raises:
            Unauthenticated: its user is disabled, or no longer confirmed by the identity provider.
        """
        common: dict[str, Any] = {
            "scopes": token.scopes,
            "token_id": token.id,
            "only": token.project,
        }
        if token.user is None:
            return Caller(is_admin=True, **common)
        mine = select(members.c.project, members.c.role).where(members.c.user == token.user)
        with reading(self._engine) as connection:
            user = _user(connection, token.user)
            roles = {row.project: Role(row.role) for row in connection.execute(mine)}
        if user is None:
            raise Unauthenticated(f"the user {token.user} is disabled")
        if reason := user.refusal(self._clock.now()):
            raise Unauthenticated(reason)
        return Caller(name=user.name, is_admin=user.is_admin, roles=roles, **common)

    def users(self) -> list[User]:
        """All users, by name."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(users).order_by(users.c.name)).mappings()
            return [User(**row) for row in rows]

    def add_user(self, name: str, *, is_admin: bool, actor: Actor) -> User:
        """Add a user, without a project.

        Raises:
            Conflict: the name is in use.
        """
        now = self._clock.now()
        with writing(self._engine) as connection:
            if _user(connection, name):
                raise Conflict(f"user {name} already exists; names of users are never reused")
            row: dict[str, Any] = {"name": name, "is_admin": is_admin, "created_at": now}
            connection.execute(insert(users).values(**row))
            action = actor.audit_action("user.add", name, after={"is_admin": is_admin})
            audit_log.append(connection, action, now)
        return User(**row, disabled_at=None)

    def change_user(
        self, name: str, *, is_admin: bool | None, is_disabled: bool | None, actor: Actor
    ) -> User:
        """Change a user and return it; None keeps a property. Disabling revokes all tokens.

        Raises:
            NotFound: the user does not exist.
        """
        now = self._clock.now()
        with writing(self._engine) as connection:
            user = _user(connection, name)
            if user is None:
                raise NotFound(f"there is no user {name}")
            change: dict[str, Any] = {}
            if is_admin is not None and is_admin is not user.is_admin:
                change["is_admin"] = is_admin
            if is_disabled is not None and is_disabled is (user.disabled_at is None):
                change["disabled_at"] = now if is_disabled else None
            if change:
                connection.execute(update(users).where(users.c.name == name).values(**change))
                after = {"is_admin": change.get("is_admin", user.is_admin)}
                if change.get("disabled_at"):
                    after["revoked_tokens"] = access_tokens.revoke_all(connection, name, now)
                before = {"is_admin": user.is_admin, "is_disabled": user.disabled_at is not None}
                after["is_disabled"] = bool(change.get("disabled_at", user.disabled_at))
                audit_log.append(
                    connection, actor.audit_action("user.change", name, before, after), now
                )
            changed = _user(connection, name)
        assert changed, "users are never removed"
        return changed

    def projects(self, only: Collection[str] | None = None) -> list[Project]:
        """Projects by name: those in `only`, or all."""
        query = select(projects).order_by(projects.c.name)
        if only is not None:
            query = query.where(projects.c.name.in_(only))
        with reading(self._engine) as connection:
            return [Project(**row) for row in connection.execute(query).mappings()]

    def project(self, name: str) -> Project:
        """The project of a name.

        Raises:
            NotFound: the project does not exist.
        """
        with reading(self._engine) as connection:
            return _project(connection, name)

    def add_project(self, name: str, actor: Actor) -> Project:
        """Add a project, without members.

        Raises:
            Conflict: the name is in use.
        """
        now = self._clock.now()
        with writing(self._engine) as connection:
            taken = select(projects.c.name).where(projects.c.name == name)
            if connection.execute(taken).first():
                raise Conflict(f"project {name} already exists; choose another name")
            row: dict[str, Any] = {"name": name, "created_at": now}
            connection.execute(insert(projects).values(**row))
            audit_log.append(connection, actor.audit_action("project.add", name, after={}), now)
        return Project(**row, archived_at=None)

    def archive_project(self, name: str, *, is_archived: bool, actor: Actor) -> Project:
        """Archive a project, which then accepts no new jobs, or restore it; returns the project.

        Raises:
            NotFound: the project does not exist.
        """
        now = self._clock.now()
        with writing(self._engine) as connection:
            project = _project(connection, name)
            if is_archived is (project.archived_at is None):
                at = now if is_archived else None
                mine = update(projects).where(projects.c.name == name)
                connection.execute(mine.values(archived_at=at))
                before, after = {"is_archived": not is_archived}, {"is_archived": is_archived}
                audit_log.append(
                    connection, actor.audit_action("project.change", name, before, after), now
                )
            return _project(connection, name)

    def members(self, project: str) -> list[Member]:
        """The members of a project, by name."""
        query = select(members).where(members.c.project == project).order_by(members.c.user)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings()
            return [Member(**{**row, "role": Role(row["role"])}) for row in rows]

    def set_member(self, project: str, user: str, role: Role | None, actor: Actor) -> None:
        """Give a user a role in a project; None removes the user from it.

        Raises:
            NotFound: the project, the user or the membership does not exist.
            NotPossibleNow: the user is disabled.
        """
        now = self._clock.now()
        mine = (members.c.project == project, members.c.user == user)
        target = f"{project}/{user}"
        with writing(self._engine) as connection:
            _project(connection, project)
            known = _user(connection, user)
            before = connection.execute(select(members.c.role).where(*mine)).scalar()
            if known is None:
                raise NotFound(
                    f"there is no user {user}; an admin creates one with: holdfast users add"
                )
            if role is None and before is None:
                raise NotFound(f"{user} is not in project {project}")
            if role is not None and known.disabled_at:
                raise NotPossibleNow(f"{user} is disabled; an admin has to enable them first")
            connection.execute(delete(members).where(*mine))
            if role is not None:
                row = {"project": project, "user": user, "role": role.value}
                connection.execute(insert(members).values(**row))
            was, now_is = ({"role": str(r)} if r else None for r in (before, role))
            if was != now_is:
                action = actor.audit_action(
                    "member.set" if role else "member.remove", target, was, now_is
                )
                audit_log.append(connection, action, now)


def _user(connection: Connection, name: str) -> User | None:
    row = connection.execute(select(users).where(users.c.name == name)).mappings().first()
    return User(**row) if row else None


def _project(connection: Connection, name: str) -> Project:
    query = select(projects).where(projects.c.name == name)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"there is no project {name}")
    return Project(**row)
