"""Which jobs a list or an action covers: filters, and selectors over tags. Pure.

Selectors are those of Kubernetes: `team=nlp,stage!=dev,owner in (ada,bob),!done`. All conditions must hold, and a job without a
tag satisfies `!=` and `notin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import BadRequest

MAX_CONDITIONS: Final = 20
"""Conditions of a selector. A lower value refuses useful selections; a higher value makes a list slower."""
MAX_TAGS: Final = 64
"""Tags of a job. A lower value refuses useful ones; a higher value makes lists of jobs longer."""
MAX_TAG_CHARS: Final = 200
"""Characters of a tag's name or value that `holdfast label` accepts. A higher value exceeds what an index can hold."""
_NAME: Final = r"[\w./ -]{1,200}?"
_PLAIN: Final = re.compile(rf"({_NAME})(?:[:=](.*))?", re.DOTALL)
_TERM: Final = re.compile(
    rf"(?P<no>!)?\s*(?P<name>{_NAME})\s*(?:(?P<op>==|=|!=)\s*(?P<value>[^()=!]*))?"
)
_SET: Final = re.compile(rf"(?P<name>{_NAME})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA: Final = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class TagCondition:
    """A condition on one tag of a job."""

    name: str
    values: frozenset[str] | None = None
    """Any of these; None: any value."""
    is_excluded: bool = False
    """Whether jobs match that do not satisfy the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFilter:
    """Conditions that all hold for the jobs of a list or an action."""

    statuses: tuple[str, ...] = ()
    """Any of these; empty: all."""
    projects: frozenset[str] | None = None
    """None: all projects."""
    owner: str | None = None
    launchers: tuple[Engine, ...] = ()
    """Any of these; empty: all."""
    find: str | None = None
    """Part of the name or id, ignoring case."""
    tags: tuple[TagCondition, ...] = ()
    since: datetime | None = None
    """Submitted at this time or later."""
    until: datetime | None = None
    """Submitted before this time."""


def parse_tag(text: str) -> TagCondition:
    """Parse `name:value`, `name=value`, or a name alone.

    Raises:
        BadRequest: it is none of them.
    """
    match = _PLAIN.fullmatch(text)
    if match is None:
        raise BadRequest(
            f"tag: {text[:100]!r} is not a tag; write name:value, with letters, digits, spaces, _ . / - in the name"
        )
    return TagCondition(match[1], None if match[2] is None else frozenset({match[2]}))


def parse_selector(text: str) -> tuple[TagCondition, ...]:
    """Parse a selector such as `team=nlp,stage!=dev`.

    Raises:
        BadRequest: it is not a selector.
    """
    terms = [term.strip() for term in _COMMA.split(text)]
    if len(terms) > MAX_CONDITIONS:
        raise BadRequest(
            f"selector: it has {len(terms)} conditions; write at most {MAX_CONDITIONS}"
        )
    return tuple(map(_condition, terms))


def _condition(term: str) -> TagCondition:
    if match := _SET.fullmatch(term):
        among = frozenset(str(value).strip() for value in match["values"].split(","))
        return TagCondition(match["name"], among, is_excluded=match["op"] == "notin")
    match = _TERM.fullmatch(term)
    if match is None or (match["no"] and match["op"]):
        raise BadRequest(
            f"selector: {term[:100]!r} is not a condition; write name=value, name!=value, name, !name, "
            "name in (a,b) or name notin (a,b), separated by commas"
        )
    values = None if match["op"] is None else frozenset({match["value"].strip()})
    return TagCondition(match["name"], values, is_excluded=bool(match["no"]) or match["op"] == "!=")


def changed_tags(tags: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The tags after changes; None removes a tag.

    Raises:
        BadRequest: a name or a value is not accepted, or there would be too many.
    """
    for why in _tag_refusals(changes):
        raise BadRequest(f"tags: {why}")
    merged = {**tags, **changes}
    after = {name: value for name, value in merged.items() if value is not None}
    if len(after) > max(MAX_TAGS, len(tags)):
        raise BadRequest(f"tags: the job would have {len(after)}; write at most {MAX_TAGS}")
    return after


def _tag_refusals(changes: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in changes.items():
        if value is None:  # Any tag may be removed, also one that a job file named.
            continue
        if re.fullmatch(_NAME, name) is None or name != name.strip():
            yield f"{name[:100]!r} is not a name; use letters, digits, spaces and _ . / -"
        elif len(value) > MAX_TAG_CHARS:
            yield f"the value of {name} has {len(value)} characters; write at most {MAX_TAG_CHARS}"
