"""What travels over the API about people: who they are, where they belong, how they come in, and what they did."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StringConstraints, TypeAdapter, WithJsonSchema

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import Can
from holdfast.domain.access.permissions import (
    LONGEST_TOKEN_DAYS,
    PROJECT_NAME,
    TOKEN_DAYS,
    USER_NAME,
)

_LINE: Final = r"^[^\x00-\x1f\x7f]+$"
UserName = Annotated[str, StringConstraints(pattern=USER_NAME)]
ProjectName = Annotated[str, StringConstraints(pattern=PROJECT_NAME)]
RoleWord = Literal["viewer", "member", "admin"]
ScopeWord = Literal["read", "write", "admin"]
RoleShown = Annotated[str, WithJsonSchema(TypeAdapter(RoleWord).json_schema())]
"""A role in an answer. A client shows one that a newer service added."""
ScopeShown = Annotated[str, WithJsonSchema(TypeAdapter(ScopeWord).json_schema())]
"""A scope in an answer, as above."""


class CurrentUserOut(Schema):
    """Who the caller is, and what they may do."""

    user: str | None = Field(description="Null for the owner of the service.")
    is_admin: bool = Field(description="Of the service.")
    roles: dict[str, RoleShown] = Field(
        description="By project; an admin of the service needs none."
    )
    scopes: list[ScopeShown]
    token_id: str | None = Field(description="Null for the owner on the service's own machine.")
    project: str | None = Field(description="The only one that the token is for; null: all.")
    demo_seed: int | None = Field(
        description="What this service's jobs, prices and people were made from, if it is a demonstration; null: they are real."
    )
    can: dict[str, Can] = Field(
        default_factory=dict,
        description="Whether they may do what is about no project, and why not.",
    )


class UserIn(Schema):
    """A user as they are to be."""

    name: UserName
    is_admin: StrictBool = Field(
        default=False, description="Of the service: they may do everything."
    )


class UserChange(Schema):
    """What is to be other with a user; what is null stays."""

    is_admin: StrictBool | None = None
    is_disabled: StrictBool | None = Field(
        default=None, description="True: all tokens are revoked, and they may not come in."
    )


class UserOut(Schema):
    """A user."""

    name: str
    is_admin: bool
    created_at: datetime
    disabled_at: datetime | None = Field(description="Null: they may come in.")


class ProjectIn(Schema):
    """A project as it is to be."""

    name: ProjectName


class ProjectChange(Schema):
    """What is to be other with a project."""

    is_archived: StrictBool = Field(description="True: it takes no new jobs; those that run go on.")


class ProjectOut(Schema):
    """A project."""

    name: str
    created_at: datetime
    archived_at: datetime | None = Field(description="Null: it takes new jobs.")
    role: RoleShown | None = Field(description="Of the caller; null for an admin who is not in it.")
    can: dict[str, Can] = Field(
        default_factory=dict, description="Whether the caller may do something in it, and why not."
    )


class MemberIn(Schema):
    """What a user is to be in a project."""

    role: RoleWord


class MemberOut(Schema):
    """What a user is in a project."""

    project: str
    user: str
    role: RoleShown


class TokenIn(Schema):
    """A token as it is to be."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=_LINE)] = Field(
        description="What it is for."
    )
    user: UserName | None = Field(
        default=None, description="Whose; null: the caller's own. Another's only from an admin."
    )
    project: ProjectName | None = Field(
        default=None, description="The only one that it is to be good for; null: all."
    )
    scopes: list[ScopeWord] = Field(
        default=["read", "write"],
        min_length=1,
        max_length=3,
        description="No more than those of the token that asks.",
    )
    days: int = Field(
        default=TOKEN_DAYS, ge=1, le=LONGEST_TOKEN_DAYS, description="How long it is good."
    )


class TokenOut(Schema):
    """What is kept of a token; its text is not."""

    id: str
    name: str
    user: str | None = Field(description="Null: the owner of the service.")
    project: str | None = Field(description="The only one that it is good for; null: all.")
    scopes: list[ScopeShown]
    created_at: datetime
    expires_at: datetime | None = Field(description="Null: never.")
    last_used_at: datetime | None = Field(description="To the minute; null: not yet.")
    revoked_at: datetime | None
    replaced_by: str | None = Field(description="Id of the token that it was rotated to.")
    is_good: bool = Field(description="Whether it lets in now.")


class NewTokenOut(Schema):
    """A new token: the only time that its text can be seen."""

    token: str = Field(repr=False, description="To be sent as `Authorization: Bearer ...`.")
    kept: TokenOut


class SessionOut(Schema):
    """A session of a browser."""

    user: str | None = Field(description="Null: the owner of the service.")
    csrf: str = Field(
        repr=False, description="To be sent as `X-CSRF-Token` with all that changes something."
    )
    ends_at: datetime = Field(description="Unless it is used before.")


class AuditEntryOut(Schema):
    """A row of the audit log."""

    seq: int
    at: datetime
    actor: str = Field(description="Name of a user, or `owner`; empty where nobody came in.")
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
    """Some rows of the audit log, newest first."""

    rows: list[AuditEntryOut]
    next: str | None = Field(description="Pass as `cursor` for the next page; null on the last.")


class AuditVerificationOut(Schema):
    """Whether the audit log is the one that was written."""

    sound: bool
    rows: int = Field(description="How many are sound, from the first on.")
    removed: int = Field(
        default=0, description="The last row that retention removed; the first row comes after it."
    )
    head: str = Field(description="The newest of them as `seq:hash`; keep it elsewhere.")
    broken_seq: int | None = Field(description="The first row that is not; null where all are.")
    problem: str | None = Field(description="What is wrong with it; null where nothing is.")
