"""Schemas of actions on a selection of jobs; shared with the client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictBool

from holdfast.api.schemas.base import Schema


class SelectionIn(Schema):
    """Jobs for which all given conditions hold, with the names of the query of `GET /v1/jobs`."""

    status: list[str] = Field(default=[], max_length=20, description="Any of these states.")
    project: str | None = None
    owner: str | None = None
    launcher: list[str] = Field(default=[], max_length=10, description="Any of these launchers.")
    find: str | None = Field(
        default=None, min_length=1, max_length=200, description="Text in the name or id."
    )
    tag: list[str] = Field(default=[], max_length=10, description="All of these tags.")
    selector: str | None = Field(
        default=None, max_length=2000, description="Condition on tags: team=nlp,stage!=dev."
    )
    since: str | None = Field(default=None, max_length=32, description="First day in UTC.")
    until: str | None = Field(default=None, max_length=32, description="Last day in UTC.")


class JobActionIn(Schema):
    """An action on several jobs: first as a preview, then on the jobs of the preview."""

    action: Literal["cancel", "pause", "resume", "retry", "label"]
    selection: SelectionIn | None = Field(
        default=None, description="Only jobs that match; null: all of `job_ids`."
    )
    job_ids: list[str] | None = Field(
        default=None,
        max_length=1000,
        description="Only these jobs. Required unless `dry_run`: those that the preview has shown.",
    )
    dry_run: StrictBool = Field(default=False, description="Only show what would be done.")
    reason: str = Field(
        default="requested for a selection of jobs",
        max_length=500,
        description="Shown in the history of each job.",
    )
    tags: dict[str, str | None] = Field(
        default={}, max_length=64, description="For `label`: new values; null removes a tag."
    )


class JobActionOut(Schema):
    """What was done to one job, or would be."""

    job_id: str
    name: str
    state: str = Field(description="State after the action; empty if there is no such job.")
    result: Literal["done", "refused", "unchanged"]
    reason: str | None = Field(description="Why it was refused, or changes nothing.")
    new_job_id: str | None = Field(description="The job that a retry has submitted.")


class JobActionsOut(Schema):
    """The results of an action, one for each job."""

    dry_run: bool = Field(description="Whether nothing was done: results show what would be.")
    done: int
    refused: int
    unchanged: int
    jobs: list[JobActionOut]
