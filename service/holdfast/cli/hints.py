"""Hints on a job as the command line shows them."""

from __future__ import annotations

from holdfast.api.hint_schemas import EvidenceOut, HintsOut
from holdfast.cli import output


def print_hints(found: HintsOut) -> None:
    """Print what the trouble looks like, what to do, and from what that follows; nothing where nothing is known to be wrong."""
    for hint in found.hints:
        more = f" (docs/{hint.page})" if hint.page else ""
        output.console.print(f"hint: {hint.looks} {hint.remedy}{more}", markup=False)
        for one in hint.evidence:
            output.console.print(f"  {_where(one)}: {one.text}", markup=False)
    if found.unread:
        output.say(f"the logs were not read for hints: {found.unread}")


def _where(one: EvidenceOut) -> str:
    if one.rank is not None:
        return f"attempt {one.attempt}, rank {one.rank}"
    return f"attempt {one.attempt}" + (f", node {one.node}" if one.node is not None else "")
