"""Sign-ins at an identity provider: accounts, roles of groups, and refresh tokens.

A user of a provider is accepted until `confirmed_until`, which each successful check moves. A refused check revokes every
token of the user. Refresh tokens are encrypted, like the secrets of jobs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, insert, select, update

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.group_roles import GrantedAccess, GroupRoles
from holdfast.domain.access.permissions import Role
from holdfast.errors import Conflict, NotFound, SignInRefused
from holdfast.ports import Clock
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.identity import access_tokens
from holdfast.store.identity.access_tokens import AccessTokens, NewToken, Token
from holdfast.store.secrets import SecretBox
from holdfast.store.tables.identity import identities, members, projects, sign_ins, users

CHECK_EVERY: Final = timedelta(minutes=20)
"""Time between two checks of a user. A lower value adds requests to the provider; with a higher value, users who lost their
account keep access for longer, for which an hour is promised."""
RETRY_EVERY: Final = timedelta(minutes=3)
"""Time after a check without a result, for which another replica leaves the user alone."""
UNCHECKED: Final = timedelta(hours=1)
"""Validity of a sign-in that cannot be checked again, as the provider gave no refresh token. With a higher value, users who
lost their account keep access for longer."""
MAX_SIGN_INS: Final = 5
"""Sign-ins of a user that are kept for checks. With a lower value, a sign-out at the provider may end all tokens; a higher
value keeps more refresh tokens."""
_NO_ROLE: Final = "none of the user's groups gives a role"
PROVIDER: Final = Actor(name="(identity provider)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInRequest:
    """A confirmed account that signs in."""

    issuer: str
    subject: str
    proposed_name: str | None
    """None: the provider sent no possible name of a user."""
    groups: frozenset[str]
    refresh_token: str | None = field(repr=False)
    token_name: str
    lifetime: timedelta
    address: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DueCheck:
    """A user whose account has to be checked, with the newest sign-in."""

    user: str
    subject: str
    sign_in_id: str
    refresh_token: str | None = field(repr=False)
    """None: it was encrypted with another secret."""


class SignIns:
    """The accounts of users at one identity provider."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        tokens: AccessTokens,
        secret: bytes,
        *,
        group_roles: GroupRoles,
        grace: timedelta,
    ) -> None:
        """`grace` is the time for which users stay accepted while the provider does not respond."""
        self._engine = engine
        self._clock = clock
        self._tokens = tokens
        self._box = SecretBox(secret, "sign-ins", owner="user")
        self._group_roles = group_roles
        self._grace = grace

    def complete(self, request: SignInRequest) -> tuple[str, Token]:
        """Create a token for an account; returns its text and the token.

        The first sign-in of an account creates its user.

        Raises:
            SignInRefused: no group gives a role, or the user is disabled.
            Conflict: another user has the name.
        """
        now = self._clock.now()
        if not self._group_roles.gives_anything(request.groups):
            self._withdraw_subject(request, _NO_ROLE)
            raise SignInRefused(_without_role(request.groups))
        with writing(self._engine) as connection:
            user = self._user_of(connection, request, now)
            self._set_access(connection, user, request.groups, now)
            lasts = UNCHECKED if request.refresh_token is None else self._grace
            self._confirm(connection, user, now + lasts)
            if request.refresh_token is not None:
                self._keep(connection, user, request.refresh_token, now)
            new = NewToken(name=request.token_name, user=user, lifetime=request.lifetime)
            text, token = self._tokens.insert(connection, new, now)
            actor = Actor(name=user, address=request.address, request_id=request.request_id)
            after = {**token.audit_fields, "token": token.id}
            audit_log.append(connection, actor.audit_action("login.sso", user, after=after), now)
        return text, token

    def claim_due(self, issuer: str) -> DueCheck | None:
        """Return the user whose check is due for longest, for this replica alone; None if none is."""
        now = self._clock.now()
        due = (
            select(identities.c.user, identities.c.subject, sign_ins.c.id, sign_ins.c.sealed)
            .join(sign_ins, sign_ins.c.user == identities.c.user)
            .where(identities.c.issuer == issuer, identities.c.due_at <= now)
            .order_by(identities.c.due_at, sign_ins.c.created_at.desc(), sign_ins.c.id)
            .limit(1)
        )
        with reading(self._engine) as connection:
            if connection.execute(due).first() is None:
                return None
        with writing(self._engine) as connection:
            row = connection.execute(due).first()
            if row is None:
                return None
            _set_due(connection, row.user, now + RETRY_EVERY)
        opened = self._box.decrypt(row.user, row.sealed)
        return DueCheck(
            user=row.user,
            subject=row.subject,
            sign_in_id=row.id,
            refresh_token=opened["refresh_token"] if opened else None,
        )

    def keep(self, check: DueCheck, refresh_token: str) -> None:
        """Replace the refresh token of a sign-in by a new one."""
        sealed = self._sealed(check.user, refresh_token)
        with writing(self._engine) as connection:
            mine = update(sign_ins).where(sign_ins.c.id == check.sign_in_id)
            connection.execute(mine.values(sealed=sealed))

    def confirm(self, check: DueCheck, groups: frozenset[str] | None) -> None:
        """Record that an account can still sign in, with its present groups; None keeps its roles.

        A user without any group that gives a role loses all tokens.
        """
        now = self._clock.now()
        mine = sign_ins.c.id == check.sign_in_id
        with writing(self._engine) as connection:
            if connection.execute(select(sign_ins.c.id).where(mine)).first() is None:
                return  # Withdrawn, or replaced by newer sign-ins, since the request.
            if groups is not None:
                if not self._group_roles.gives_anything(groups):
                    self._withdraw(connection, check.user, _NO_ROLE, now)
                    return
                self._set_access(connection, check.user, groups, now)
            self._confirm(connection, check.user, now + self._grace)
            _set_due(connection, check.user, now + CHECK_EVERY)

    def refuse(self, check: DueCheck, why: str) -> None:
        """Record a refused sign-in; without another one, the user loses all tokens."""
        now = self._clock.now()
        with writing(self._engine) as connection:
            mine = delete(sign_ins).where(sign_ins.c.id == check.sign_in_id)
            if not connection.execute(mine).rowcount:
                return
            others = select(sign_ins.c.id).where(sign_ins.c.user == check.user).limit(1)
            if connection.execute(others).first() is None:
                self._withdraw(connection, check.user, why, now)
            else:
                _set_due(connection, check.user, now)

    def link(self, issuer: str, user: str, subject: str, actor: Actor) -> None:
        """Make an account that of an existing user, who loses the tokens of the account before.

        Raises:
            NotFound: the user does not exist.
            Conflict: the account is that of another user.
        """
        now = self._clock.now()
        with writing(self._engine) as connection:
            if connection.execute(select(users.c.name).where(users.c.name == user)).first() is None:
                raise NotFound(f"there is no user {user}")
            mine = identities.c.issuer == issuer, identities.c.subject == subject
            owner = connection.execute(select(identities.c.user).where(*mine)).scalar()
            if owner is not None and owner != user:
                raise Conflict(f"the account {subject} is already that of the user {owner}")
            if owner == user:
                return
            old = connection.execute(
                select(identities.c.subject).where(identities.c.user == user)
            ).scalar()
            if old is not None:
                self._withdraw(connection, user, "the user got another account", now)
                connection.execute(delete(identities).where(identities.c.user == user))
            self._insert_identity(connection, (issuer, subject), user, now)
            before = None if old is None else {"subject": old}
            action = actor.audit_action("user.link", user, before, {"subject": subject})
            audit_log.append(connection, action, now)

    def _user_of(self, connection: Connection, request: SignInRequest, now: datetime) -> str:
        """Return the user of an account, created if the account is new."""
        account = request.issuer, request.subject
        mine = identities.c.issuer == request.issuer, identities.c.subject == request.subject
        user: str | None = connection.execute(select(identities.c.user).where(*mine)).scalar()
        if user is None:
            user = request.proposed_name
            if user is None:
                raise SignInRefused(
                    f"the account {request.subject} has no claim that can name a user; an admin links it to one: "
                    f"holdfast users link USER {request.subject}"
                )
            if connection.execute(select(users.c.name).where(users.c.name == user)).first():
                raise Conflict(
                    f"the user {user} exists, and is not linked to your account {request.subject}; if it is yours, "
                    f"an admin links it: holdfast users link {user} {request.subject}"
                )
            row = {"name": user, "is_admin": False, "created_at": now}
            connection.execute(insert(users).values(**row))
            after = {"is_admin": False, "subject": request.subject}
            audit_log.append(connection, PROVIDER.audit_action("user.add", user, after=after), now)
            self._insert_identity(connection, account, user, now)
        disabled = select(users.c.disabled_at).where(users.c.name == user)
        if connection.execute(disabled).scalar() is not None:
            raise SignInRefused(f"the user {user} is disabled; an admin can enable it")
        return user

    def _insert_identity(
        self, connection: Connection, account: tuple[str, str], user: str, now: datetime
    ) -> None:
        issuer, subject = account
        row = {"issuer": issuer, "subject": subject, "user": user, "created_at": now}
        row |= {"granted": GrantedAccess().to_json(), "due_at": now}
        connection.execute(insert(identities).values(**row))

    def _keep(self, connection: Connection, user: str, refresh_token: str, now: datetime) -> None:
        """Store a refresh token for checks, and remove the oldest ones."""
        row = {"id": secrets.token_hex(16), "user": user, "created_at": now}
        row["sealed"] = self._sealed(user, refresh_token)
        connection.execute(insert(sign_ins).values(**row))
        newest = select(sign_ins.c.id).where(sign_ins.c.user == user)
        ordered = newest.order_by(sign_ins.c.created_at.desc(), sign_ins.c.id)
        old = list(connection.execute(ordered).scalars())[MAX_SIGN_INS:]
        connection.execute(delete(sign_ins).where(sign_ins.c.id.in_(old)))
        _set_due(connection, user, now + CHECK_EVERY)

    def _sealed(self, user: str, refresh_token: str) -> str:
        return self._box.encrypt(user, {"refresh_token": refresh_token})

    def _confirm(self, connection: Connection, user: str, until: datetime) -> None:
        """Accept a user until a time, or longer if a check permitted that."""
        mine = update(users).where(users.c.name == user)
        earlier = (users.c.confirmed_until.is_(None)) | (users.c.confirmed_until < until)
        connection.execute(mine.where(earlier).values(confirmed_until=until))

    def _set_access(
        self, connection: Connection, user: str, groups: frozenset[str], now: datetime
    ) -> None:
        """Give a user the roles of their groups, and withdraw those that groups gave before."""
        for project in sorted(self._group_roles.projects):
            _ensure_project(connection, project, now)
        every = connection.execute(select(projects.c.name)).scalars()
        access = self._group_roles.access_of(groups, every)
        stored = select(identities.c.granted).where(identities.c.user == user)
        before = GrantedAccess.from_json(connection.execute(stored).scalar_one())
        for project in sorted({*before.roles, *access.roles}):
            _set_role(connection, (project, user), access.roles.get(project), now)
        if before.is_admin or access.is_admin:
            _set_admin(connection, user, is_admin=access.is_admin, now=now)
        mine = update(identities).where(identities.c.user == user)
        connection.execute(mine.values(granted=access.to_json()))

    def _withdraw_subject(self, request: SignInRequest, why: str) -> None:
        """Revoke the tokens of an account that has lost its groups; it may have no user."""
        mine = identities.c.issuer == request.issuer, identities.c.subject == request.subject
        with writing(self._engine) as connection:
            user = connection.execute(select(identities.c.user).where(*mine)).scalar()
            if user is not None:
                self._withdraw(connection, user, why, self._clock.now())

    def _withdraw(self, connection: Connection, user: str, why: str, now: datetime) -> None:
        """Revoke the tokens of a user with those created with them, and the roles of groups."""
        self._set_access(connection, user, frozenset(), now)
        count = access_tokens.revoke_all(connection, user, now)
        connection.execute(delete(sign_ins).where(sign_ins.c.user == user))
        # Also tokens that are created at this moment, or by an admin later, are not accepted.
        mine = update(users).where(users.c.name == user)
        connection.execute(mine.values(confirmed_until=now))
        after = {"why": why, "revoked_tokens": count}
        action = PROVIDER.audit_action("login.withdraw", user, after=after)
        audit_log.append(connection, action, now)


def _without_role(groups: frozenset[str]) -> str:
    if not groups:
        return "your account has no groups here; an admin checks the claim of groups at the identity provider (HOLDFAST_OIDC_GROUPS_CLAIM)"
    shown = (group[:100] for group in sorted(groups)[:10])
    named = "".join(char for char in ", ".join(shown) if char.isprintable())
    more = f" and {len(groups) - 10} more" if len(groups) > 10 else ""
    return f"none of your groups gives a role ({named}{more}); an admin maps groups to roles with HOLDFAST_OIDC_GROUPS"


def _set_due(connection: Connection, user: str, at: datetime) -> None:
    mine = update(identities).where(identities.c.user == user)
    connection.execute(mine.values(due_at=at))


def _ensure_project(connection: Connection, project: str, now: datetime) -> None:
    known = select(projects.c.name).where(projects.c.name == project)
    if connection.execute(known).first() is None:
        connection.execute(insert(projects).values(name=project, created_at=now))
        action = PROVIDER.audit_action("project.add", project, after={})
        audit_log.append(connection, action, now)


def _set_role(
    connection: Connection, member: tuple[str, str], role: Role | None, now: datetime
) -> None:
    project, user = member
    mine = members.c.project == project, members.c.user == user
    before = connection.execute(select(members.c.role).where(*mine)).scalar()
    after = role.value if role else None
    if before == after:
        return
    connection.execute(delete(members).where(*mine))
    if after is not None:
        connection.execute(insert(members).values(project=project, user=user, role=after))
    was, now_is = (_role(one) for one in (before, after))
    action = "member.set" if after else "member.remove"
    entry = PROVIDER.audit_action(action, f"{project}/{user}", was, now_is)
    audit_log.append(connection, entry, now)


def _role(role: str | None) -> Mapping[str, Any] | None:
    return {"role": role} if role else None


def _set_admin(connection: Connection, user: str, *, is_admin: bool, now: datetime) -> None:
    mine = users.c.name == user
    before = connection.execute(select(users.c.is_admin).where(mine)).scalar_one()
    if before is not is_admin:
        connection.execute(update(users).where(mine).values(is_admin=is_admin))
        was, now_is = {"is_admin": before}, {"is_admin": is_admin}
        action = PROVIDER.audit_action("user.change", user, was, now_is)
        audit_log.append(connection, action, now)
