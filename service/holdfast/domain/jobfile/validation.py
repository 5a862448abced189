"""What is wrong with a job file as sentences: pydantic's errors, turned into flaws with a place and a way out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import NOT_TEXT, JobFile
from holdfast.errors import BadLimits, Flaw

# Unions and validators add their own steps to a place; what a person wrote has only keys and numbers.
_TAGS: Final = frozenset({"str", "list", "dict", "int", "float", "bool"})
_WAYS_OUT: Final = {
    "metric": "write the name under which the script logs it",
    "mode": "write min or max",
}
"""What to write instead of nothing."""
MOST_FLAWS: Final = 100
"""Mistakes that one answer names. A lower value makes people send a file more often; a higher value costs time for each."""
_LONGEST_WORD: Final = 64
"""Longest word that is compared with the known ones, which takes time that grows with its length."""
_LONGEST_SHOWN: Final = 200
"""Characters of a wrong value that are repeated."""


def validate(raw: dict[str, Any]) -> tuple[JobFile | None, tuple[Flaw, ...]]:
    """The file, or None and why not."""
    try:
        return JobFile.model_validate(raw), ()
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MOST_FLAWS]
        flaws = {flaw.pointer: flaw for flaw in map(flaw_of, reversed(errors))}
        # `run` may be a text or a list: of a list with one bad word, only the word is wrong.
        inner = {pointer.rpartition("/")[0] for pointer in flaws}
        return None, tuple(flaws[place] for place in reversed(flaws) if place not in inner)


def with_changes(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """The limits with some of them changed; null gives back what holds where nothing is said.

    Raises:
        BadLimits: with every mistake that was found.
    """
    words = {**limits.model_dump(mode="json"), **changes}
    try:
        return Limits.model_validate({word: v for word, v in words.items() if v is not None})
    except ValidationError as error:
        raise BadLimits(tuple(map(_wrong_limit, error.errors()))) from error


def _wrong_limit(detail: ErrorDetails) -> Flaw:
    steps = [str(step) for step in detail["loc"]]
    message = _sentence(detail, ["holdfast", "limits", *steps])
    return Flaw("#" + "".join(f"/{step}" for step in steps), message)


def flaw_of(detail: ErrorDetails) -> Flaw:
    """One of pydantic's errors about a job, as a flaw."""
    steps = [str(step) for step in detail["loc"]]
    if detail["type"] != "extra_forbidden":
        steps = [s for s in steps if "[" not in s and s not in _TAGS]
    pointer = "#" + "".join(f"/{step}" for step in steps)
    if steps[0] == "secrets" or steps[:2] == ["holdfast", "notify"]:
        # Whatever is wrong with a secret, its value is not repeated; a URL is the key to somebody's room.
        message = NOT_TEXT if detail["type"] == "string_unicode" else detail["msg"]
        return Flaw(pointer, message.removeprefix("Value error, "))
    return Flaw(pointer, _sentence(detail, steps))


def _sentence(detail: ErrorDetails, steps: list[str]) -> str:
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(steps)
        case "missing":
            return f"is missing; {_WAYS_OUT.get(steps[-1], 'a job needs it')}"
        case "string_pattern_mismatch" if steps[-1:] == ["store"]:
            return f"{_shown(detail['input'])} is not a store; write s3://bucket/prefix or file:///folder"
        case "string_unicode":
            return NOT_TEXT
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case _:
            return f"{_shown(detail['input'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _unknown(steps: list[str]) -> str:
    """What to say of a word that is not known: the nearest one that is, or all of a short list."""
    model: Any = JobFile
    for step in steps[:-1]:
        if not step.isdigit():
            model = _model_of(model.model_fields[step].annotation)
    known = sorted(field.alias or name for name, field in model.model_fields.items())
    return unknown_word(steps[-1], known)


def unknown_word(word: str, known: Sequence[str]) -> str:
    """What is wrong with a word that is none of the known ones: the nearest of them, or all."""
    if len(word) <= _LONGEST_WORD and (near := difflib.get_close_matches(word, known, n=1)):
        return f"is not known; did you mean {near[0]!r}?"
    return f"is not known here; known are {', '.join(known)}" if known else "is not known here"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model somewhere in an annotation; None: there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_of(item) for item in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)
