"""Schemas of users, projects, tokens, sessions and the audit log; shared with the client."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StringConstraints, TypeAdapter, WithJsonSchema

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import Can
from holdfast.domain.access.permissions import (
    MAX_TOKEN_DAYS,
    PROJECT_NAME,
    TOKEN_DAYS,
    USER_NAME,
)

_LINE: Final = r"^[^\x00-\x1f\x7f]+$"
UserName = Annotated[str, StringConstraints(pattern=USER_NAME)]
ProjectName = Annotated[str, StringConstraints(pattern=PROJECT_NAME)]
RoleName = Literal["viewer", "member", "admin"]
ScopeName = Literal["read", "write", "admin"]
RoleShown = Annotated[str, WithJsonSchema(TypeAdapter(RoleName).json_schema())]
"""A role in a response. A client also displays roles that a newer service added."""
ScopeShown = Annotated[str, WithJsonSchema(TypeAdapter(ScopeName).json_schema())]
"""A scope in a response; like roles, open to additions."""


class CurrentUserOut(Schema):
    """The caller and their permissions."""

    user: str | None = Field(description="Null for the owner of the service.")
    is_admin: bool = Field(description="Admin of the service.")
    roles: dict[str, RoleShown] = Field(
        description="Role by project; an admin of the service needs none."
    )
    scopes: list[ScopeShown]
    token_id: str | None = Field(description="Null for the owner on the service's own machine.")
    project: str | None = Field(description="The only project of the token; null: all.")
    demo_seed: int | None = Field(
        description="Seed of the generated jobs, prices and users of a demonstration; null: real data."
    )
    can: dict[str, Can] = Field(
        default_factory=dict,
        description="Permissions for actions outside of projects, with the reason for a refusal.",
    )


class UserIn(Schema):
    """A user to create."""

    name: UserName
    is_admin: StrictBool = Field(
        default=False, description="Admin of the service, who may do everything."
    )


class UserChange(Schema):
    """Changes of a user; null leaves a value unchanged."""

    is_admin: StrictBool | None = None
    is_disabled: StrictBool | None = Field(
        default=None, description="True: disabled, and all tokens are revoked."
    )
    subject: (
        Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=_LINE)] | None
    ) = Field(
        default=None,
        description="Account at the identity provider (its claim `sub`) that signs in as this user from now on.",
    )


class UserOut(Schema):
    """A user."""

    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None = Field(description="Null: enabled.")
    confirmed_until: datetime | None = Field(
        default=None,
        description="When tokens stop unless the identity provider confirms the user; null: not a user of a provider.",
    )


class ProjectIn(Schema):
    """A project to create."""

    name: ProjectName


class ProjectChange(Schema):
    """Changes of a project."""

    is_archived: StrictBool = Field(
        description="True: it accepts no new jobs; running ones continue."
    )


class ProjectOut(Schema):
    """A project."""

    name: str
    created_at: datetime
    archived_at: datetime | None = Field(description="Null: it accepts new jobs.")
    role: RoleShown | None = Field(
        description="Role of the caller; null for an admin who is not a member."
    )
    can: dict[str, Can] = Field(
        default_factory=dict,
        description="Permissions of the caller in it, with the reason for a refusal.",
    )


class MemberIn(Schema):
    """The role of a user in a project."""

    role: RoleName


class MemberOut(Schema):
    """A member of a project."""

    project: str
    user: str
    role: RoleShown


class TokenIn(Schema):
    """A token to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=_LINE)] = Field(
        description="Its purpose."
    )
    user: UserName | None = Field(
        default=None, description="Its user; null: the caller. Only admins may name others."
    )
    project: ProjectName | None = Field(
        default=None, description="The only project it is valid for; null: all."
    )
    scopes: list[ScopeName] = Field(
        default=["read", "write"],
        min_length=1,
        max_length=3,
        description="At most those of the requesting token.",
    )
    days: int = Field(default=TOKEN_DAYS, ge=1, le=MAX_TOKEN_DAYS, description="Days of validity.")


class TokenOut(Schema):
    """A token without its text."""

    id: str
    name: str
    user: str | None = Field(description="Null: the owner of the service.")
    project: str | None = Field(description="The only project it is valid for; null: all.")
    scopes: list[ScopeShown]
    created_at: datetime
    expires_at: datetime | None = Field(description="Null: no expiry.")
    last_used_at: datetime | None = Field(description="To the minute; null: not used yet.")
    revoked_at: datetime | None
    replaced_by: str | None = Field(description="Id of the token that replaced it.")
    is_good: bool = Field(description="Whether it is valid now.")


class NewTokenOut(Schema):
    """A new token with its text, which only this response contains."""

    token: str = Field(repr=False, description="Send it as `Authorization: Bearer ...`.")
    kept: TokenOut


class SessionOut(Schema):
    """A browser session."""

    user: str | None = Field(description="Null: the owner of the service.")
    csrf: str = Field(repr=False, description="Send it as `X-CSRF-Token` with every change.")
    ends_at: datetime = Field(description="Expiry, unless the session is used before.")


class SignInOptionsOut(Schema):
    """How users can sign in."""

    provider: str | None = Field(
        description="Host of the identity provider; null: with access tokens only."
    )
    failure: str | None = Field(
        description="Why the last sign-in of this browser failed; null: it did not, or over a minute ago."
    )


class DeviceSignInOut(Schema):
    """A sign-in to be completed in a browser on any machine."""

    handle: str = Field(repr=False, description="Send it to poll for the token.")
    user_code: str = Field(description="The person enters or compares it.")
    verification_uri: str
    verification_uri_complete: str | None = Field(description="The same with the code in it.")
    expires_in_s: int
    interval_s: int = Field(description="Seconds to wait between two polls.")


class DevicePollIn(Schema):
    """A sign-in to be polled."""

    handle: Annotated[str, StringConstraints(min_length=1, max_length=16_384)]


class DevicePollOut(Schema):
    """The state of such a sign-in."""

    token: NewTokenOut | None = Field(description="Null: not completed yet.")
    slow_down: bool = Field(description="Wait for 5 seconds more between polls from now on.")


class AuditEntryOut(Schema):
    """An entry of the audit log."""

    seq: int
    at: datetime
    actor: str = Field(description="Name of a user, or `owner`; empty for refused logins.")
    token_id: str | None
    address: str | None
    request_id: str | None
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    previous_hash: str
    hash: str


class AuditPage(Schema):
    """A page of audit entries, newest first."""

    rows: list[AuditEntryOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")


class AuditVerificationOut(Schema):
    """Result of verifying the audit log."""

    sound: bool
    rows: int = Field(description="Number of intact rows, from the first on.")
    removed: int = Field(
        default=0, description="The last row deleted by retention; the first row follows it."
    )
    head: str = Field(
        description="The newest intact row as `seq:hash`; store it outside the service."
    )
    broken_seq: int | None = Field(description="The first modified row; null if all are intact.")
    problem: str | None = Field(description="What is wrong with it; null if all are intact.")
