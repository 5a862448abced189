"""What was found out about one thing."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Grade(StrEnum):
    """How well a thing is."""

    OK = "ok"
    WARNING = "warning"
    """Jobs run without it, and something that people expect is not there."""
    MISSING = "missing"
    """Something does not work until somebody has done what the finding says."""


class Finding(BaseModel):
    """One thing: how it is, and what to do about it."""

    model_config = ConfigDict(frozen=True)

    about: str
    grade: Grade
    told: str
    todo: str = Field(default="", description="Empty where there is nothing to do.")


def ok(about: str, told: str) -> Finding:
    """A thing that is well."""
    return Finding(about=about, grade=Grade.OK, told=told)


def warning(about: str, told: str, todo: str) -> Finding:
    """A thing that could be better."""
    return Finding(about=about, grade=Grade.WARNING, told=told, todo=todo)


def missing(about: str, told: str, todo: str) -> Finding:
    """A thing that stands in the way."""
    return Finding(about=about, grade=Grade.MISSING, told=told, todo=todo)
