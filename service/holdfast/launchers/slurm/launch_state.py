"""The books of a launch: facts in its folder, each written once, by the job or by who looks at it. The truth.

submitted.<n>  job                                  the n-th Slurm job of this launch
placed.<n>     at job restart nodes partition ...   a placement has begun; written by itself
left.<n>       at code node trained why words said  it has ended by itself
lost.<n>       at cause detail guess                its nodes are gone, and the launch goes on; written by a look
denied.<why>   at                                   Slurm has said why it waits
cancelled      at
ended          at outcome exit_code detail
forgotten      at                                   nobody knows it any more
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm.scontrol import SlurmJob

Fact = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchState:
    """What one look has found."""

    order: Mapping[str, Any] = field(default_factory=dict)
    """What was submitted; empty before."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """By name."""
    row: SlurmJob | None = None
    """What Slurm says of the newest job; None where it was not asked."""
    silent_s: int = 0
    """How long ago the quietest node of the newest placement was heard, by the clock of the shared files."""

    def numbered(self, kind: str) -> dict[int, Fact]:
        """The facts of a kind by their number, in order."""
        found = {
            int(name.partition(".")[2]): fact
            for name, fact in self.facts.items()
            if name.startswith(f"{kind}.")
        }
        return dict(sorted(found.items()))

    @property
    def is_known(self) -> bool:
        """Whether anybody has submitted or cancelled this launch."""
        return bool(self.facts)


def read(text: str) -> LaunchState:
    """The books in what `phrases.LOOK` has printed.

    Raises:
        LauncherUnreachable: Slurm did not answer.
    """
    order: Mapping[str, Any] = {}
    facts: dict[str, Fact] = {}
    row, silent_s = None, 0
    for line in text.split("\n"):
        kind, _, rest = line.partition("\t")
        match kind:
            case "order" if rest:
                order = json.loads(rest)
            case "fact":
                name, _, body = rest.partition("\t")
                facts[name] = _fact(body)
            case "row":
                row = SlurmJob.parse(rest)
            case "gone":
                row = SlurmJob.gone(rest)
            case "trouble":
                raise LauncherUnreachable(f"Slurm does not answer: {rest}")
            case "beat":
                silent_s = max(silent_s, int(rest))
            case _:
                pass
    return LaunchState(order=order, facts=facts, row=row, silent_s=silent_s)


def text_of(fact: Mapping[str, object]) -> str:
    """A fact as it is written."""
    lines = (f"{name}={' '.join(str(value).split())}" for name, value in fact.items())
    return "\n".join(lines) + "\n"


def _fact(body: str) -> Fact:
    pairs = (line.partition("=") for line in body.split("\036") if line)
    return {name: value for name, _, value in pairs}
