"""Who may do what: the roles of people in projects, the scopes of tokens, and what every action needs of both.

A role says what a person may do in one project. A scope says how much of that a token carries: it narrows, and never
gives. What an action needs is a row of `NEEDS`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, Self

from holdfast.errors import Forbidden, NotFound

USER_NAME: Final = r"^[a-z0-9][a-z0-9._@+-]{0,63}$"
PROJECT_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"

TOKEN_DAYS: Final = 90
"""How long a token is good where nobody says. Smaller: people are locked out of what runs by itself. Bigger: one that
was lost stays good for longer."""
LONGEST_TOKEN_DAYS: Final = 366
"""Longest that a token may be good. Smaller: machines need a visit more often. Bigger: nobody remembers who has it."""
ROTATION_GRACE: Final = timedelta(hours=24)
"""How long the token before goes on, so that it can be replaced everywhere. Smaller: something is forgotten and locked
out. Bigger: one that was rotated because it may be known goes on; such a one is revoked instead."""
WORKER_GRACE: Final = timedelta(hours=1)
"""How long after the end of a job was recorded its workers may report. Smaller: the last words of one that had no way
to the service are lost. Bigger: a token that was left on a node is good for longer, if only for words about the past."""


class Role(StrEnum):
    """What a person is in a project; each may do what those before it may."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class TokenScope(StrEnum):
    """What a token may be used for, of all that its owner may do."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Action(StrEnum):
    """What a route does. Every route of the API declares one, in `holdfast.api.auth.route_policy`."""

    LOOK_AROUND = "look_around"
    """What belongs to no project, and to everybody who may come in: prices, launchers, who one is."""
    SEE = "see"
    """Jobs, with all that is told of them, and who is in a project."""
    SUBMIT = "submit"
    UPLOAD = "upload"
    """Send code for jobs to submit; it belongs to its sender, and to no project yet."""
    STEER = "steer"
    """Change what becomes of a job: cancel, preempt."""
    REMOVE = "remove"
    """Remove an ended job: one's own, or as an admin of the project any."""
    SET_BUDGET = "set_budget"
    MANAGE_CHANNELS = "manage_channels"
    """Where news of a project goes."""
    MANAGE_MEMBERS = "manage_members"
    SEE_TOKENS = "see_tokens"
    """One's own."""
    MANAGE_TOKENS = "manage_tokens"
    """Make and revoke one's own."""
    MANAGE_SERVICE = "manage_service"
    """Users, projects, and everybody's tokens."""
    AUDIT = "audit"
    MEASURE = "measure"
    """Read the figures of the whole service, as a monitor does."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an action asks for."""

    scope: TokenScope
    role: Role | None = None
    """Lowest role in the project that it is about; None: it is about none."""
    of_service: bool = False
    """True: only for admins of the service."""


NEEDS: Final[Mapping[Action, Need]] = {
    Action.LOOK_AROUND: Need(TokenScope.READ),
    Action.SEE: Need(TokenScope.READ, Role.VIEWER),
    Action.SUBMIT: Need(TokenScope.WRITE, Role.MEMBER),
    Action.UPLOAD: Need(TokenScope.WRITE, Role.MEMBER),
    Action.STEER: Need(TokenScope.WRITE, Role.MEMBER),
    Action.REMOVE: Need(TokenScope.WRITE, Role.MEMBER),
    Action.SET_BUDGET: Need(TokenScope.ADMIN, Role.ADMIN),
    Action.MANAGE_CHANNELS: Need(TokenScope.ADMIN, Role.ADMIN),
    Action.MANAGE_MEMBERS: Need(TokenScope.ADMIN, Role.ADMIN),
    Action.SEE_TOKENS: Need(TokenScope.READ),
    Action.MANAGE_TOKENS: Need(TokenScope.ADMIN),
    Action.MANAGE_SERVICE: Need(TokenScope.ADMIN, of_service=True),
    Action.AUDIT: Need(TokenScope.ADMIN, of_service=True),
    Action.MEASURE: Need(TokenScope.READ, of_service=True),
}

_RANK: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Whoever sent a request, and what they may do."""

    name: str = ""
    """Of the user; empty for the owner of the service, who has none."""
    is_admin: bool = False
    """Of the service: they may do everything in all projects."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By project."""
    scopes: frozenset[TokenScope] = frozenset(TokenScope)
    token_id: str | None = None
    """None: they came without one."""
    only: str | None = None
    """The one project that their token is good for; None: all."""

    @property
    def is_trusted(self) -> bool:
        """Whether their jobs may use the service's machine as the service does: the owner's, and those of its admins."""
        return self.is_admin and self.only is None

    def within_one(self, project: str) -> Self:
        """The same caller with no rights outside of one project, and none to the service's machine."""
        return replace(self, only=project)

    def may(self, action: Action, project: str | None = None) -> bool:
        """Whether they may do `action`, in `project` if it is about one."""
        need = NEEDS[action]
        if need.scope not in self.scopes:
            return False
        if need.of_service:
            return self.is_trusted
        if need.role is None:
            return True
        return project is not None and self._ranks(project, need.role)

    def belongs(self, project: str) -> bool:
        """Whether they may know that there is such a project."""
        return self._ranks(project, Role.VIEWER)

    @property
    def sees(self) -> frozenset[str] | None:
        """The projects whose jobs they may see; None: all."""
        if TokenScope.READ not in self.scopes:
            return frozenset()
        if self.is_admin:
            return None if self.only is None else frozenset({self.only})
        return frozenset(name for name in self.roles if self.only in (None, name))

    def within(self, project: str | None) -> frozenset[str] | None:
        """The projects of which a list is asked for: the named one, or all that they may see; None: all.

        Raises:
            NotFound: they must not be told that there is such a project.
            Forbidden: their token is not for reading.
        """
        if project is None:
            return self.sees
        self.require(Action.SEE, project)
        return frozenset({project})

    def require(self, action: Action, project: str | None = None) -> None:
        """Nothing, if they may; where it is not known yet in which project, only what that does not depend on.

        Raises:
            NotFound: they must not be told that there is such a project.
            Forbidden: they may see it, and not do this.
        """
        need = NEEDS[action]
        if project is not None and not self.belongs(project):
            raise NotFound(f"there is no project {project}")
        if need.scope not in self.scopes:
            raise Forbidden(
                f"this token has no scope {need.scope}; make one that has: holdfast tokens add"
            )
        if need.of_service and not self.may(action):
            raise Forbidden(
                "only an admin of the service may do that, with a token for all projects"
            )
        if need.role and project is not None and not self._ranks(project, need.role):
            raise Forbidden(
                f"that needs the role {need.role} in project {project}; yours there is {self.roles[project]}"
            )

    def may_remove(self, project: str, owner: str) -> bool:
        """Whether they may remove a job of `owner` in `project`."""
        is_own = bool(owner) and owner == self.name
        return self.may(Action.REMOVE, project) and (is_own or self._ranks(project, Role.ADMIN))

    def may_somewhere(self, action: Action) -> bool:
        """Whether they may do `action` in at least one project."""
        return self.is_admin or any(self.may(action, name) for name in self.roles)

    def home(self, action: Action, otherwise: str) -> str:
        """The project that is meant where none is named: their only one, else `otherwise`."""
        if self.only is not None:
            return self.only
        mine = [name for name in self.roles if self.may(action, name)]
        return mine[0] if len(mine) == 1 and not self.is_admin else otherwise

    def _ranks(self, project: str, least: Role) -> bool:
        if self.only not in (None, project):
            return False
        role = self.roles.get(project)
        return self.is_admin or (role is not None and _RANK[role] >= _RANK[least])


OWNER: Final = Caller(is_admin=True)
"""Whoever runs the service, on its own machine."""
NOBODY: Final = Caller(scopes=frozenset())
"""Who may do nothing: at doors that are open to all, or that have a lock of their own."""
