"""What a caller may do to what belongs to no job: said beforehand, in the words of the refusal."""

from __future__ import annotations

from holdfast.api.schemas import Can
from holdfast.domain.rights import NEEDS, Action, Caller
from holdfast.errors import Forbidden, NotFound


def may(caller: Caller, project: str | None = None) -> dict[str, Can]:
    """Every action in a project, or without one those that are about none, by name; why not, where they may not."""
    return {
        action.value: _can(caller, action, project)
        for action in Action
        if (NEEDS[action].role is None) == (project is None)
    }


def _can(caller: Caller, action: Action, project: str | None) -> Can:
    try:
        caller.require(action, project)
    except (Forbidden, NotFound) as refusal:
        return Can(allowed=False, reason=refusal.detail)
    return Can(allowed=True)
