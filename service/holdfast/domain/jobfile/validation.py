"""Validation of job files: pydantic errors as messages with a place and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.protocol.object_stores import STORE_FORMS
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.places import planned_place_flaws
from holdfast.domain.jobfile.resources import NOT_TEXT
from holdfast.domain.jobfile.spec import Engine, JobFile, engine_of
from holdfast.errors import BadLimits, ValidationIssue

# Pydantic adds steps of unions and validators to a location; a job file has only keys and numbers.
_TAGS: Final = frozenset({"str", "list", "dict", "int", "float", "bool"})
_REMEDIES: Final = {
    "metric": "write the name under which the script logs it",
    "mode": "write min or max",
    "name": "write one, such as workers",
    "num_nodes": "write the number of nodes of the group",
}
"""Remedies for missing values."""
MAX_FLAWS: Final = 100
"""Mistakes reported at once. A lower value needs more submissions to fix a file; a higher value costs time for each mistake."""
_MAX_KEY_CHARS: Final = 64
"""Longest key that is compared with known keys; the comparison's time grows with the length."""
_MAX_SHOWN_CHARS: Final = 200
"""Characters of a wrong value that a message repeats."""


def validate(raw: dict[str, Any]) -> tuple[JobFile | None, tuple[ValidationIssue, ...]]:
    """Validate a job file: the model, or None and the mistakes."""
    try:
        return JobFile.model_validate(raw), ()
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_FLAWS]
        issues = {issue.pointer: issue for issue in map(to_flaw, reversed(errors))}
        # `run` may be a text or a list: in a list with one wrong item, only the item is reported.
        inner = {pointer.rpartition("/")[0] for pointer in issues}
        return None, tuple(issues[place] for place in reversed(issues) if place not in inner)


def plan_flaws(file: JobFile) -> Iterator[ValidationIssue]:
    """Yield what contradicts the plan of a job file."""
    block = file.holdfast
    if block.plan is None:
        return
    checkpoint = block.checkpoint
    found = block.plan.flaws(
        has_deadline=block.limits.deadline is not None,
        has_store=checkpoint is not None,
        has_parent=checkpoint is not None and checkpoint.from_job is not None,
    )
    yield from (ValidationIssue(pointer, sentence) for pointer, sentence in found)
    if block.groups:
        yield ValidationIssue(
            "#/holdfast/plan", "cannot be combined with groups; remove one of the two"
        )
        return
    resources = file.resources.model_dump(exclude_none=True)
    engine = engine_of(resources)
    if engine is not Engine.LOCAL:
        yield from planned_place_flaws(
            resources, is_slurm=engine is Engine.SLURM, on_demand=block.plan.on_demand
        )
    elif resources.get("use_spot") is False:
        yield ValidationIssue(
            "#/resources/use_spot",
            "is false, so there is nothing to plan; remove it, or remove holdfast.plan",
        )


def output_flaws(file: JobFile) -> Iterator[ValidationIssue]:
    """Yield what prevents output files from being kept."""
    if file.holdfast.outputs and file.holdfast.checkpoint is None:
        yield ValidationIssue(
            "#/holdfast/outputs",
            "are kept in the checkpoint store, and the job has none; add holdfast.checkpoint.store",
        )


def with_changes(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """Apply changes to limits; null restores the default.

    Raises:
        BadLimits: With all mistakes found.
    """
    words = {**limits.model_dump(mode="json"), **changes}
    try:
        return Limits.model_validate({word: v for word, v in words.items() if v is not None})
    except ValidationError as error:
        raise BadLimits(tuple(map(_limit_flaw, error.errors()))) from error


def _limit_flaw(detail: ErrorDetails) -> ValidationIssue:
    steps = [str(step) for step in detail["loc"]]
    message = _sentence(detail, ["holdfast", "limits", *steps])
    return ValidationIssue("#" + "".join(f"/{step}" for step in steps), message)


def to_flaw(detail: ErrorDetails) -> ValidationIssue:
    """Convert a pydantic error about a job into a ValidationIssue."""
    steps = [str(step) for step in detail["loc"]]
    if detail["type"] != "extra_forbidden":
        steps = [s for s in steps if "[" not in s and s not in _TAGS]
    pointer = "#" + "".join(f"/{step}" for step in steps)
    if steps[0] == "secrets" or steps[:2] == ["holdfast", "notify"]:
        # Messages never repeat secrets; a notification URL grants access to its channel.
        message = NOT_TEXT if detail["type"] == "string_unicode" else detail["msg"]
        return ValidationIssue(pointer, message.removeprefix("Value error, "))
    return ValidationIssue(pointer, _sentence(detail, steps))


def _sentence(detail: ErrorDetails, steps: list[str]) -> str:  # noqa: PLR0911 - one for each kind
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_key(steps)
        case "missing":
            return f"is missing; {_REMEDIES.get(steps[-1], 'a job needs it')}"
        case "string_pattern_mismatch" if steps[-1:] == ["store"]:
            return f"{_shown(detail['input'])} is not a store; write {STORE_FORMS}"
        case "string_type" if steps[-1:] == ["every"]:
            return f"{_shown(detail['input'])} is not an interval; write auto, 15m or 500 steps"
        case "string_unicode":
            return NOT_TEXT
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case _:
            return f"{_shown(detail['input'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _unknown_key(steps: list[str]) -> str:
    """The message for an unknown key: the closest known key, or all known keys."""
    model: Any = JobFile
    for step in steps[:-1]:
        if not step.isdigit():
            model = _model_of(model.model_fields[step].annotation)
    known = sorted(field.alias or name for name, field in model.model_fields.items())
    return unknown_key_message(steps[-1], known)


def unknown_key_message(word: str, known: Sequence[str]) -> str:
    """The message for an unknown key: the closest of `known`, or all of them."""
    if len(word) <= _MAX_KEY_CHARS and (near := difflib.get_close_matches(word, known, n=1)):
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known keys are {', '.join(known)}" if known else "unknown key"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_of(item) for item in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)
