"""Users, projects, tokens and the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.api.schemas.identity import (
    AuditEntryOut,
    AuditPage,
    AuditVerificationOut,
    CurrentUserOut,
    DevicePollOut,
    DeviceSignInOut,
    MemberOut,
    NewTokenOut,
    ProjectOut,
    TokenOut,
    UserOut,
)
from holdfast.client.calls import (
    AsyncResource,
    Call,
    Many,
    Resource,
    empty_call,
    endpoint,
    get,
    json_call,
    paged,
    sequence,
    url_path,
)


class IdentityCalls:
    """Calls about users, projects, tokens and the audit log."""

    @endpoint
    def current_user(self) -> Call[CurrentUserOut]:
        """Return the caller."""
        return get(CurrentUserOut, "/v1/whoami")

    @endpoint
    def users(self) -> Call[list[UserOut]]:
        """List all users by name."""
        return get(list[UserOut], "/v1/users")

    @endpoint
    def add_user(self, name: str, *, is_admin: bool) -> Call[UserOut]:
        """Create a user."""
        body = {"name": name, "is_admin": is_admin}
        return json_call(UserOut, "POST", "/v1/users", json=body)

    @endpoint
    def change_user(
        self,
        name: str,
        *,
        is_admin: bool | None = None,
        is_disabled: bool | None = None,
        subject: str | None = None,
    ) -> Call[UserOut]:
        """Change a user and return them; None leaves a value unchanged."""
        body: dict[str, bool | str | None] = {"is_admin": is_admin, "is_disabled": is_disabled}
        if subject is not None:  # Older services do not know it.
            body["subject"] = subject
        return json_call(UserOut, "PATCH", url_path("users", name), json=body)

    @endpoint
    def projects(self) -> Call[list[ProjectOut]]:
        """List the caller's projects, or all for an admin."""
        return get(list[ProjectOut], "/v1/projects")

    @endpoint
    def add_project(self, name: str) -> Call[ProjectOut]:
        """Create a project."""
        return json_call(ProjectOut, "POST", "/v1/projects", json={"name": name})

    @endpoint
    def archive_project(self, name: str, *, is_archived: bool) -> Call[ProjectOut]:
        """Archive a project so that it accepts no new jobs, or restore it."""
        body = {"is_archived": is_archived}
        return json_call(ProjectOut, "PATCH", url_path("projects", name), json=body)

    @endpoint
    def members(self, project: str) -> Call[list[MemberOut]]:
        """List the members of a project."""
        path = url_path("projects", project, "members")
        return get(list[MemberOut], path)

    @endpoint
    def set_member(self, project: str, user: str, role: str) -> Call[MemberOut]:
        """Set the role of a user in a project."""
        path = url_path("projects", project, "members", user)
        return json_call(MemberOut, "PUT", path, json={"role": role})

    @endpoint
    def remove_member(self, project: str, user: str) -> Call[None]:
        """Remove a user from a project."""
        return empty_call("DELETE", url_path("projects", project, "members", user))

    @endpoint
    def tokens(self, *, everybodys: bool = False) -> Call[list[TokenOut]]:
        """List the caller's tokens, or those of all users, newest first."""
        params = {"everybodys": everybodys}
        return get(list[TokenOut], "/v1/tokens", params)

    @endpoint
    def add_token(
        self,
        name: str,
        *,
        user: str | None,
        project: str | None,
        scopes: Sequence[str],
        days: int,
    ) -> Call[NewTokenOut]:
        """Create a token and return it with its text."""
        body = {
            "name": name,
            "user": user,
            "project": project,
            "scopes": list(scopes),
            "days": days,
        }
        return json_call(NewTokenOut, "POST", "/v1/tokens", json=body)

    @endpoint
    def rotate_token(self, token_id: str) -> Call[NewTokenOut]:
        """Replace a token; the old one stays valid for a day."""
        return json_call(NewTokenOut, "POST", url_path("tokens", token_id, "rotate"))

    @endpoint
    def revoke_token(self, token_id: str) -> Call[TokenOut]:
        """Revoke a token."""
        return json_call(TokenOut, "DELETE", url_path("tokens", token_id))

    @endpoint
    def start_sign_in(self) -> Call[DeviceSignInOut]:
        """Start a sign-in at the identity provider, which a person completes in a browser."""
        return json_call(DeviceSignInOut, "POST", "/v1/sign-in/device")

    @endpoint
    def poll_sign_in(self, handle: str) -> Call[DevicePollOut]:
        """Return the token of a sign-in once it is completed."""
        return json_call(DevicePollOut, "POST", "/v1/sign-in/device/token", json={"handle": handle})

    @endpoint
    def audit(self, /, **asked: str | int | None) -> Call[AuditPage]:
        """Return one page of audit entries, newest first. `asked`: actor, target, limit, cursor."""
        return get(AuditPage, "/v1/audit", asked)

    @sequence
    def find_audit_entries(
        self, actor: str | None = None, target: str | None = None
    ) -> Many[AuditEntryOut]:
        """Yield audit entries, newest first."""
        params = {"actor": actor, "target": target}
        return paged(AuditPage, "/v1/audit", params, lambda page: page.rows)

    @endpoint
    def verify_audit(self, head: str | None = None) -> Call[AuditVerificationOut]:
        """Verify the audit log, optionally against a chain head saved earlier."""
        return get(AuditVerificationOut, "/v1/audit/verdict", {"head": head})


class IdentityClient(IdentityCalls, Resource):
    """Users, projects, tokens and the audit log."""


class AsyncIdentityClient(IdentityCalls, AsyncResource):
    """Users, projects, tokens and the audit log, for asynchronous programs."""
