"""Client for users, projects, tokens and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.api.schemas.identity import (
    AuditPage,
    AuditVerificationOut,
    CurrentUserOut,
    MemberOut,
    NewTokenOut,
    ProjectOut,
    TokenOut,
    UserOut,
)
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class PeopleClient:
    """Client for users, projects, tokens and the audit log."""

    client: Client

    def current_user(self) -> CurrentUserOut:
        """Return the caller."""
        return self.client.get(CurrentUserOut, "GET", "/v1/whoami")

    def users(self) -> list[UserOut]:
        """List all users by name."""
        return self.client.get(list[UserOut], "GET", "/v1/users")

    def add_user(self, name: str, *, is_admin: bool) -> UserOut:
        """Create a user."""
        body = {"name": name, "is_admin": is_admin}
        return self.client.get(UserOut, "POST", "/v1/users", json=body)

    def change_user(
        self, name: str, *, is_admin: bool | None = None, is_disabled: bool | None = None
    ) -> UserOut:
        """Change a user and return them; None leaves a value unchanged."""
        body = {"is_admin": is_admin, "is_disabled": is_disabled}
        return self.client.get(UserOut, "PATCH", _path("users", name), json=body)

    def projects(self) -> list[ProjectOut]:
        """List the caller's projects, or all for an admin."""
        return self.client.get(list[ProjectOut], "GET", "/v1/projects")

    def add_project(self, name: str) -> ProjectOut:
        """Create a project."""
        return self.client.get(ProjectOut, "POST", "/v1/projects", json={"name": name})

    def archive_project(self, name: str, *, is_archived: bool) -> ProjectOut:
        """Archive a project so that it accepts no new jobs, or restore it."""
        body = {"is_archived": is_archived}
        return self.client.get(ProjectOut, "PATCH", _path("projects", name), json=body)

    def members(self, project: str) -> list[MemberOut]:
        """List the members of a project."""
        path = _path("projects", project, "members")
        return self.client.get(list[MemberOut], "GET", path)

    def set_member(self, project: str, user: str, role: str) -> MemberOut:
        """Set the role of a user in a project."""
        path = _path("projects", project, "members", user)
        return self.client.get(MemberOut, "PUT", path, json={"role": role})

    def remove_member(self, project: str, user: str) -> None:
        """Remove a user from a project."""
        self.client.send("DELETE", _path("projects", project, "members", user))

    def tokens(self, *, everybodys: bool = False) -> list[TokenOut]:
        """List the caller's tokens, or those of all users, newest first."""
        params = {"everybodys": everybodys}
        return self.client.get(list[TokenOut], "GET", "/v1/tokens", params=params)

    def add_token(
        self,
        name: str,
        *,
        user: str | None,
        project: str | None,
        scopes: Sequence[str],
        days: int,
    ) -> NewTokenOut:
        """Create a token and return it with its text."""
        body = {
            "name": name,
            "user": user,
            "project": project,
            "scopes": list(scopes),
            "days": days,
        }
        return self.client.get(NewTokenOut, "POST", "/v1/tokens", json=body)

    def rotate_token(self, token_id: str) -> NewTokenOut:
        """Replace a token; the old one stays valid for a day."""
        return self.client.get(NewTokenOut, "POST", _path("tokens", token_id, "rotate"))

    def revoke_token(self, token_id: str) -> TokenOut:
        """Revoke a token."""
        return self.client.get(TokenOut, "DELETE", _path("tokens", token_id))

    def audit(self, **asked: str | int | None) -> AuditPage:
        """Return one page of audit entries, newest first. `asked`: actor, target, limit, cursor."""
        params = {word: value for word, value in asked.items() if value is not None}
        return self.client.get(AuditPage, "GET", "/v1/audit", params=params)

    def verify_audit(self, head: str | None = None) -> AuditVerificationOut:
        """Verify the audit log, optionally against a chain head saved earlier."""
        params: dict[str, Any] = {"head": head} if head else {}
        return self.client.get(AuditVerificationOut, "GET", "/v1/audit/verdict", params=params)


def _path(*steps: str) -> str:
    """Build a path below `/v1`; each argument is quoted as one segment."""
    return "/v1/" + "/".join(quote(step, safe="") for step in steps)
