"""Results of checks."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Grade(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Jobs run, but an expected feature is missing."""
    MISSING = "missing"
    """Something does not work until the remedy is applied."""


class Finding(BaseModel):
    """The result of one check with its remedy."""

    model_config = ConfigDict(frozen=True)

    about: str
    grade: Grade
    told: str
    todo: str = Field(default="", description="Empty if no action is needed.")


def ok(about: str, told: str) -> Finding:
    """Return a finding without problems."""
    return Finding(about=about, grade=Grade.OK, told=told)


def warning(about: str, told: str, todo: str) -> Finding:
    """Return a finding that could be improved."""
    return Finding(about=about, grade=Grade.WARNING, told=told, todo=todo)


def missing(about: str, told: str, todo: str) -> Finding:
    """Return a finding that prevents jobs."""
    return Finding(about=about, grade=Grade.MISSING, told=told, todo=todo)
