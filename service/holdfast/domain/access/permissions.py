"""Permissions: roles in projects, scopes of tokens, and the requirements of every action.

A role defines what a person may do in one project. A scope restricts what a token may do and never extends it. Each action has one
row of requirements, defined only here.
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
"""Default lifetime of a token in days. A lower value locks out automation; a higher value keeps lost tokens valid longer."""
MAX_TOKEN_DAYS: Final = 366
"""Maximum lifetime of a token in days. A lower value forces more rotations; a higher value leaves forgotten tokens valid."""
ROTATION_GRACE: Final = timedelta(hours=24)
"""Validity of the previous token after a rotation.

A lower value locks out clients that were not updated; a higher value keeps a possibly leaked token valid. Revoke leaked tokens
instead.
"""
WORKER_GRACE: Final = timedelta(hours=1)
"""Time after the recorded end of a job in which its workers may report.

A lower value loses the last reports of a worker without connectivity; a higher value keeps a token left on a node valid longer,
though only for reports.
"""


class Role(StrEnum):
    """Role of a person in a project; each includes the previous ones."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class TokenScope(StrEnum):
    """Scope of a token within its owner's permissions."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Action(StrEnum):
    """Permission that a route requires, declared in `holdfast.api.auth.route_policy`."""

    LOOK_AROUND = "look_around"
    """Read data outside projects: prices, launchers, the current user."""
    SEE = "see"
    """Read jobs, their data and project members."""
    SUBMIT = "submit"
    UPLOAD = "upload"
    """Upload code for jobs; it belongs to its uploader and to no project yet."""
    STEER = "steer"
    """Change the course of a job: cancel, preempt."""
    EXECUTE = "execute"
    """Run commands on the nodes of a job: one's own, or any as a project admin."""
    REMOVE = "remove"
    """Remove an ended job: one's own, or any as a project admin."""
    SET_BUDGET = "set_budget"
    MANAGE_CHANNELS = "manage_channels"
    """Manage notification channels of a project."""
    MANAGE_MEMBERS = "manage_members"
    SEE_TOKENS = "see_tokens"
    """List one's own tokens."""
    MANAGE_TOKENS = "manage_tokens"
    """Create and revoke one's own tokens."""
    MANAGE_SERVICE = "manage_service"
    """Manage users, projects and all tokens."""
    AUDIT = "audit"
    MEASURE = "measure"
    """Read metrics of the whole service, as a monitoring system does."""


@dataclass(frozen=True, slots=True)
class ActionRequirement:
    """Requirements of an action."""

    scope: TokenScope
    role: Role | None = None
    """Lowest sufficient role in its project; None if it concerns no project."""
    of_service: bool = False
    """Whether only service admins may do it."""


ACTION_REQUIREMENTS: Final[Mapping[Action, ActionRequirement]] = {
    Action.LOOK_AROUND: ActionRequirement(TokenScope.READ),
    Action.SEE: ActionRequirement(TokenScope.READ, Role.VIEWER),
    Action.SUBMIT: ActionRequirement(TokenScope.WRITE, Role.MEMBER),
    Action.UPLOAD: ActionRequirement(TokenScope.WRITE, Role.MEMBER),
    Action.STEER: ActionRequirement(TokenScope.WRITE, Role.MEMBER),
    Action.EXECUTE: ActionRequirement(TokenScope.WRITE, Role.MEMBER),
    Action.REMOVE: ActionRequirement(TokenScope.WRITE, Role.MEMBER),
    Action.SET_BUDGET: ActionRequirement(TokenScope.ADMIN, Role.ADMIN),
    Action.MANAGE_CHANNELS: ActionRequirement(TokenScope.ADMIN, Role.ADMIN),
    Action.MANAGE_MEMBERS: ActionRequirement(TokenScope.ADMIN, Role.ADMIN),
    Action.SEE_TOKENS: ActionRequirement(TokenScope.READ),
    Action.MANAGE_TOKENS: ActionRequirement(TokenScope.ADMIN),
    Action.MANAGE_SERVICE: ActionRequirement(TokenScope.ADMIN, of_service=True),
    Action.AUDIT: ActionRequirement(TokenScope.ADMIN, of_service=True),
    Action.MEASURE: ActionRequirement(TokenScope.READ, of_service=True),
}

_RANK: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The sender of a request with its permissions."""

    name: str = ""
    """User name; empty for the owner of the service, who has none."""
    is_admin: bool = False
    """Whether the caller is a service admin, who may do everything in all projects."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Roles by project."""
    scopes: frozenset[TokenScope] = frozenset(TokenScope)
    token_id: str | None = None
    """Id of the token; None without one."""
    only: str | None = None
    """The only project that the token is valid for; None for all."""

    @property
    def is_trusted(self) -> bool:
        """Whether the caller's jobs may use the service's machine with its rights.

        The jobs of the owner and of service admins may.
        """
        return self.is_admin and self.only is None

    def restricted_to(self, project: str) -> Self:
        """This caller restricted to one project and without rights on the service's machine."""
        return replace(self, only=project)

    def may(self, action: Action, project: str | None = None) -> bool:
        """Whether the caller may do `action`, in `project` if it concerns one."""
        need = ACTION_REQUIREMENTS[action]
        if need.scope not in self.scopes:
            return False
        if need.of_service:
            return self.is_trusted
        if need.role is None:
            return True
        return project is not None and self._has_role(project, need.role)

    def may_see(self, project: str) -> bool:
        """Whether the caller may know that the project exists."""
        return self._has_role(project, Role.VIEWER)

    @property
    def visible_projects(self) -> frozenset[str] | None:
        """Projects whose jobs the caller may see; None for all."""
        if TokenScope.READ not in self.scopes:
            return frozenset()
        if self.is_admin:
            return None if self.only is None else frozenset({self.only})
        return frozenset(name for name in self.roles if self.only in (None, name))

    def filter_projects(self, project: str | None) -> frozenset[str] | None:
        """Projects that a list covers: the named one, or all visible ones; None for all.

        Raises:
            NotFound: The caller may not know that the project exists.
            Forbidden: The token has no read scope.
        """
        if project is None:
            return self.visible_projects
        self.require(Action.SEE, project)
        return frozenset({project})

    def require(self, action: Action, project: str | None = None) -> None:
        """Check a permission; without a project, only the parts that do not depend on one.

        Raises:
            NotFound: The caller may not know that the project exists.
            Forbidden: The caller may see the project, but lacks this permission.
        """
        need = ACTION_REQUIREMENTS[action]
        if project is not None and not self.may_see(project):
            raise NotFound(f"there is no project {project}")
        if need.scope not in self.scopes:
            raise Forbidden(
                f"this token has no scope {need.scope}; create one with it: holdfast tokens add"
            )
        if need.of_service and not self.may(action):
            raise Forbidden("this requires a service admin with a token for all projects")
        if need.role and project is not None and not self._has_role(project, need.role):
            raise Forbidden(
                f"this requires the role {need.role} in project {project}; your role is {self.roles[project]}"
            )

    def may_remove(self, project: str, owner: str) -> bool:
        """Whether the caller may remove a job of `owner` in `project`."""
        return self.may(Action.REMOVE, project) and self._owns(project, owner)

    def may_execute(self, project: str, owner: str) -> bool:
        """Whether the caller may run commands on the nodes of a job of `owner` in `project`.

        A command sees the secrets of the job, which other members may not.
        """
        return self.may(Action.EXECUTE, project) and self._owns(project, owner)

    def _owns(self, project: str, owner: str) -> bool:
        is_own = bool(owner) and owner == self.name
        return is_own or self._has_role(project, Role.ADMIN)

    def may_in_any_project(self, action: Action) -> bool:
        """Whether the caller may do `action` in at least one project."""
        return self.is_admin or any(self.may(action, name) for name in self.roles)

    def default_project(self, action: Action, otherwise: str) -> str:
        """The default project: the caller's only one, or else `otherwise`."""
        if self.only is not None:
            return self.only
        mine = [name for name in self.roles if self.may(action, name)]
        return mine[0] if len(mine) == 1 and not self.is_admin else otherwise

    def _has_role(self, project: str, least: Role) -> bool:
        if self.only not in (None, project):
            return False
        role = self.roles.get(project)
        return self.is_admin or (role is not None and _RANK[role] >= _RANK[least])


OWNER: Final = Caller(is_admin=True)
"""The owner of the service on its own machine."""
ANONYMOUS: Final = Caller(scopes=frozenset())
"""A caller without permissions: at public routes and routes with their own authentication."""
