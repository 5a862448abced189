"""The records of a launch: facts in its directory, each written once. They are the truth.

The job or an observer writes them.

    submitted.<n>  job                                   the n-th Slurm job of this launch
    placed.<n>     at job restart nodes partition ...    a placement has started; written by itself
    left.<n>       at code node trained why words said   a placement has ended by itself
    node_lost.<n>.<node>  at detail                      a node of placement n is lost, and the others continue without it
    lost.<n>       at cause detail guess                 its nodes are lost, and the launch continues; written by an observer
    denied.<why>   at                                    Slurm reports this reason for waiting
    cancelled      at
    ended          at outcome exit_code detail
    forgotten      at                                    Slurm and its accounting no longer know the launch
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm.scontrol import SlurmJob

Fact = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchState:
    """The records of a launch, and the state of its job in Slurm."""

    order: Mapping[str, Any] = field(default_factory=dict)
    """The submitted launch; empty before the submission."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts by name."""
    job: SlurmJob | None = None
    """The newest job in Slurm; None if Slurm was not queried."""
    lost_first_node: str = ""
    """Name of the node of the batch script if Slurm has removed it from the running job, which is elastic."""
    silent_s: int = 0
    """Age in seconds of the newest placement's oldest heartbeat, by the shared files' clock.
    Lost nodes of an elastic job do not count."""

    def numbered(self, kind: str) -> dict[int, Fact]:
        """Return the facts of a kind by number, in order."""
        found = {
            int(name.partition(".")[2]): fact
            for name, fact in self.facts.items()
            if name.startswith(f"{kind}.")
        }
        return dict(sorted(found.items()))

    def node_losses(self, placement: int) -> list[tuple[int, Fact]]:
        """Return the lost nodes of a placement without which the others continue, in order."""
        prefix = f"node_lost.{placement}."
        found = (
            (int(name.removeprefix(prefix)), fact)
            for name, fact in self.facts.items()
            if name.startswith(prefix)
        )
        return sorted(found, key=lambda loss: (float(loss[1]["at"]), loss[0]))

    @property
    def is_known(self) -> bool:
        """Whether this launch was submitted or cancelled."""
        return bool(self.facts)


def parse(text: str) -> LaunchState:
    """Parse the output of `remote_scripts.READ_STATE`.

    Raises:
        LauncherUnreachable: Slurm did not respond.
    """
    order: Mapping[str, Any] = {}
    facts: dict[str, Fact] = {}
    row, lost_first_node, beats = None, "", list[tuple[int, str]]()
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
            case "headless":
                lost_first_node = rest
            case "gone":
                row = SlurmJob.forgotten(rest)
            case "trouble":
                raise LauncherUnreachable(f"Slurm did not respond: {rest}")
            case "beat":
                age_s, _, node = rest.partition("\t")
                beats.append((int(age_s), node))
            case _:
                pass
    state = LaunchState(order=order, facts=facts, job=row, lost_first_node=lost_first_node)
    newest = max(state.numbered("placed"), default=0)
    lost = {str(node) for node, _ in state.node_losses(newest)}
    return replace(state, silent_s=max((s for s, node in beats if node not in lost), default=0))


def format_fact(fact: Mapping[str, object]) -> str:
    """Format a fact for its file."""
    lines = (f"{name}={' '.join(str(value).split())}" for name, value in fact.items())
    return "\n".join(lines) + "\n"


def _fact(body: str) -> Fact:
    pairs = (line.partition("=") for line in body.split("\036") if line)
    return {name: value for name, _, value in pairs}
