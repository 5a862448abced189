"""People of a service as a Python object, beside its jobs in `holdfast.client`."""

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
    """Users, projects, tokens and the audit log of a service."""

    client: Client

    def who(self) -> CurrentUserOut:
        """Who the caller is there."""
        return self.client.get(CurrentUserOut, "GET", "/v1/whoami")

    def users(self) -> list[UserOut]:
        """Everybody, by name."""
        return self.client.get(list[UserOut], "GET", "/v1/users")

    def add_user(self, name: str, *, is_admin: bool) -> UserOut:
        """The new user."""
        body = {"name": name, "is_admin": is_admin}
        return self.client.get(UserOut, "POST", "/v1/users", json=body)

    def change_user(
        self, name: str, *, is_admin: bool | None = None, is_disabled: bool | None = None
    ) -> UserOut:
        """The user after a change; None leaves a thing as it is."""
        body = {"is_admin": is_admin, "is_disabled": is_disabled}
        return self.client.get(UserOut, "PATCH", _path("users", name), json=body)

    def projects(self) -> list[ProjectOut]:
        """The projects that the caller is in; all for an admin."""
        return self.client.get(list[ProjectOut], "GET", "/v1/projects")

    def add_project(self, name: str) -> ProjectOut:
        """The new project."""
        return self.client.get(ProjectOut, "POST", "/v1/projects", json={"name": name})

    def archive_project(self, name: str, *, is_archived: bool) -> ProjectOut:
        """The project, which takes new jobs no more, or again."""
        body = {"is_archived": is_archived}
        return self.client.get(ProjectOut, "PATCH", _path("projects", name), json=body)

    def members(self, project: str) -> list[MemberOut]:
        """Who is in a project."""
        path = _path("projects", project, "members")
        return self.client.get(list[MemberOut], "GET", path)

    def set_member(self, project: str, user: str, role: str) -> MemberOut:
        """A user with a role in a project."""
        path = _path("projects", project, "members", user)
        return self.client.get(MemberOut, "PUT", path, json={"role": role})

    def remove_member(self, project: str, user: str) -> None:
        """Take a user out of a project."""
        self.client.send("DELETE", _path("projects", project, "members", user))

    def tokens(self, *, everybodys: bool = False) -> list[TokenOut]:
        """The caller's tokens, newest first; or those of all people."""
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
        """A new token with its text."""
        body = {
            "name": name,
            "user": user,
            "project": project,
            "scopes": list(scopes),
            "days": days,
        }
        return self.client.get(NewTokenOut, "POST", "/v1/tokens", json=body)

    def rotate_token(self, token_id: str) -> NewTokenOut:
        """A new token instead of one, which goes on for a day."""
        return self.client.get(NewTokenOut, "POST", _path("tokens", token_id, "rotate"))

    def revoke_token(self, token_id: str) -> TokenOut:
        """A token that lets nobody in any more."""
        return self.client.get(TokenOut, "DELETE", _path("tokens", token_id))

    def audit(self, **asked: str | int | None) -> AuditPage:
        """One page of what was done, newest first. `asked`: actor, target, limit, cursor."""
        params = {word: value for word, value in asked.items() if value is not None}
        return self.client.get(AuditPage, "GET", "/v1/audit", params=params)

    def verdict(self, head: str | None = None) -> AuditVerificationOut:
        """Whether the audit log is the one that was written, by the head that somebody kept."""
        params: dict[str, Any] = {"head": head} if head else {}
        return self.client.get(AuditVerificationOut, "GET", "/v1/audit/verdict", params=params)


def _path(*steps: str) -> str:
    """An address below `/v1`; what people typed is one step of it, whatever is in it."""
    return "/v1/" + "/".join(quote(step, safe="") for step in steps)
