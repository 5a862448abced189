"""Roles that groups of an identity provider give: the setting `HOLDFAST_OIDC_GROUPS`.

`GROUP=ROLE` gives a role in every project, or makes an admin of the service; `GROUP=PROJECT:ROLE` gives a role in one
project. Entries are separated by semicolons, because names of directory groups contain commas and equals signs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from holdfast.domain.access.permissions import PROJECT_NAME, USER_NAME, Role
from holdfast.errors import BadRequest

SETTING: Final = "HOLDFAST_OIDC_GROUPS"
RESERVED_NAME: Final = "owner"
"""A name that no user can have: the owner of the service is called so."""
_EXAMPLE: Final = "platform=admin; nlp-team=nlp:member"
_RANK: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupGrant:
    """What membership of one group gives."""

    group: str
    role: Role
    project: str | None = None
    """None: every project; for `admin`, the whole service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantedAccess:
    """The access that the groups of one user give."""

    is_admin: bool = False
    """Whether the user is an admin of the service."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By project."""

    @property
    def is_nothing(self) -> bool:
        """Whether the groups give no access at all."""
        return not self.is_admin and not self.roles

    def to_json(self) -> dict[str, Any]:
        """Return the fields as stored."""
        roles = {project: role.value for project, role in sorted(self.roles.items())}
        return {"is_admin": self.is_admin, "roles": roles}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the access of stored fields."""
        roles = {project: Role(role) for project, role in stored["roles"].items()}
        return cls(is_admin=stored["is_admin"], roles=roles)


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """The roles that groups give."""

    grants: tuple[GroupGrant, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the setting.

        Raises:
            BadRequest: an entry is invalid, or there is none.
        """
        entries = [word.strip() for word in text.split(";") if word.strip()]
        if not entries:
            raise BadRequest(f"{SETTING}: names no group; write entries such as {_EXAMPLE!r}")
        return cls(tuple(_grant(entry) for entry in entries))

    @property
    def projects(self) -> frozenset[str]:
        """Projects that entries name."""
        return frozenset(grant.project for grant in self.grants if grant.project)

    def access_of(self, groups: Collection[str], projects: Iterable[str]) -> GrantedAccess:
        """Return what groups give, in `projects` if an entry names none; the highest role wins."""
        every = tuple(projects)
        held = [grant for grant in self.grants if grant.group in groups]
        roles: dict[str, Role] = {}
        for grant in held:
            for project in (grant.project,) if grant.project else every:
                known = roles.get(project)
                if known is None or _RANK[grant.role] > _RANK[known]:
                    roles[project] = grant.role
        is_admin = any(grant.role is Role.ADMIN and not grant.project for grant in held)
        # An admin of the service needs no role in a project.
        return GrantedAccess(is_admin=True) if is_admin else GrantedAccess(roles=roles)

    def gives_anything(self, groups: Collection[str]) -> bool:
        """Whether an entry names one of these groups."""
        return any(grant.group in groups for grant in self.grants)


def user_name(proposals: Iterable[object]) -> str | None:
    """Return the first of some claims that can name a user; None if none can."""
    for proposal in proposals:
        name = proposal.lower() if isinstance(proposal, str) else ""
        if re.fullmatch(USER_NAME, name) and name != RESERVED_NAME:
            return name
    return None


def _grant(entry: str) -> GroupGrant:
    group, _, given = entry.rpartition("=")
    project, _, word = given.strip().rpartition(":")
    group, project, word = group.strip(), project.strip(), word.strip()
    if not group:
        raise BadRequest(f"{SETTING}: {entry!r} names no group or no role; write entries such as {_EXAMPLE!r}")  # fmt: skip
    if word not in set(Role):
        known = ", ".join(Role)
        raise BadRequest(f"{SETTING}: {entry!r} gives the role {word!r}; the roles are {known}")
    if project and not re.fullmatch(PROJECT_NAME, project):
        raise BadRequest(
            f"{SETTING}: {entry!r} names the project {project!r}; names have lower-case letters, digits and hyphens"
        )
    return GroupGrant(group=group, role=Role(word), project=project or None)
