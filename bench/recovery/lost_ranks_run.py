"""One measurement of `lost_ranks.py`: one of three ranks or nodes is killed, and training continues."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from recovery.lost_ranks_nodes import NODES, Course, Moment, Nodes, free_port
from recovery.lost_ranks_scripts import FLOOR, HOLDFAST, LIGHTHOUSE, PLAIN, TORCHFT

PHASES: Final = (
    "detect",
    "decide",
    "nodes",
    "processes",
    "imports",
    "script",
    "process group",
    "state",
    "first step",
    "repeated",
)
"""Phases from the kill to the next new step, in order.
detect: the kill is noticed. decide: the wrappers decide what to do. nodes: the launcher has other ones. processes: the script starts. imports: the script has imported.
script: the script asks for a process group. process group: the ranks are connected. state: it is loaded. first step: the first step
ends on all nodes. repeated: steps that had been made before."""


RESERVE_S: Final = 10.0
"""Time for the nodes of an elastic run to get processes ready for the ranks of a lost one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for all ways."""

    step_s: float
    width: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What a kill cost."""

    new_step_s: float
    """Seconds from the kill to the end of the first step that had not been made before."""
    all_nodes_s: float
    """Seconds from the kill to the end of the first such step in which all nodes took part."""
    repeated_steps: int | None
    """Steps that all ranks made twice; None if the program makes no steps."""
    dropped_batches: int | None
    """Batches of single ranks that no step used; None if the program makes no steps."""
    lost_node_s: float
    """Seconds of nodes without progress until all nodes took part again."""
    moved_s: float | None
    """Seconds for which ranks waited when some moved from another node to the replacement of a lost one."""
    has_fallen_back: bool
    """Whether all ranks were started again although only one should be replaced."""
    phases: Mapping[str, float]


Ends = Callable[[Course], Mapping[str, float | None]]
"""Returns the ends of the phases."""


def _replaced(course: Course) -> Mapping[str, float | None]:
    lost = [course.moment.node]
    return {
        "detect": course.agent_noticed_s,
        "decide": course.logged_s("starting the ranks of this node again", course.moment.node),
        "processes": course.last_of_first("script", lost),
        "imports": course.last_of_first("imported", lost),
        "script": course.last_of_first("asked", lost),
        "process group": course.last_of_first("connected", lost),
        "state": course.last_of_first("state", lost),
        "first step": course.all_nodes_at_s(),
    }


def _replaced_node(course: Course) -> Mapping[str, float | None]:
    waits = course.logged_s("the ranks of the others wait", 0)
    return {**_replaced(course), "detect": waits, "decide": None}


def _restarted(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.agent_noticed_s,
        "decide": course.logged_s("starting all ranks again"),
        "processes": course.last_of_first("script"),
        "imports": course.last_of_first("imported"),
        "process group": course.last_of_first("joined"),
        "state": course.last_of_first("state"),
        "first step": course.last_of_first("step"),
        "repeated": course.all_nodes_at_s(),
    }


def _shrunk(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.last_of_first("dropped", course.survivors),
        "first step": course.survivors_at_s(),
    }


def _floor(course: Course) -> Mapping[str, float | None]:
    return {
        "detect": course.last_of_first("asked", course.survivors),
        "process group": course.last_of_first("connected"),
        "first step": course.all_nodes_at_s(),
    }


ReplaceNode = Callable[[Nodes, int, Callable[[int, Mapping[str, str]], None]], None]
"""Replaces a node, with a function that starts one with additional variables."""


def _start_again(_nodes: Nodes, node: int, start: Callable[[int, Mapping[str, str]], None]) -> None:
    start(node, {"HOLDFAST_NODE_START": "1"})


def _start_all_again(
    nodes: Nodes, _node: int, start: Callable[[int, Mapping[str, str]], None]
) -> None:
    """As the next attempt, on the same machines and without any delay."""
    nodes.wait_for_ends()
    for each in range(NODES):
        start(each, {"HOLDFAST_ATTEMPT": "2", "HOLDFAST_EPOCH": "2"})


def _use_spare(_nodes: Nodes, _node: int, _start: object) -> None:
    """The spare process is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to recover from the loss of a rank or a node."""

    name: str
    label: str
    script: str
    command: Callable[[Path, int], list[str]]
    """Command of each node, from the script and a free port."""
    ends: Ends
    variables: Mapping[str, str] = field(default_factory=dict)
    replace_node: ReplaceNode
    """Starts another node in the place of a lost one, as its launcher would."""
    lighthouse: Sequence[str] | None = None
    """Options of torchft's lighthouse; None: it is not needed."""
    processes: int = NODES
    is_elastic: bool = False
    """Whether another node runs the ranks of a lost one until it is replaced."""
    continues_with_fewer: bool = False

    def measure(self, home: Path, moment: Moment, settings: Settings) -> Loss:
        """Train on three nodes, kill a rank, and wait until all nodes train again.

        Raises:
            NotRecovered: training did not start or did not continue in time.
        """
        nodes = Nodes(home)
        try:
            shared, port = self._start(nodes, settings)

            def start_node(node: int, variables: Mapping[str, str]) -> None:
                command = self.command(home / "script.py", port)
                nodes.start(node, command, {**shared, **variables})

            course = nodes.kill(
                moment,
                settings.step_s,
                lambda: moment.is_whole_node and self.replace_node(nodes, moment.node, start_node),
                prepares_s=RESERVE_S if self.is_elastic else 0.0,
                moves=self.is_elastic and moment.is_whole_node,
            )
            return self._loss(course)
        finally:
            nodes.end()

    def _start(self, nodes: Nodes, settings: Settings) -> tuple[dict[str, str], int]:
        """Start all nodes; return their common variables, and a port."""
        port = free_port()
        script = nodes.home / "script.py"
        script.write_text(self.script)
        if self.lighthouse is not None:
            lighthouse = nodes.home / "lighthouse.py"
            lighthouse.write_text(LIGHTHOUSE)
            options = [f"--bind=127.0.0.1:{port}", "--min_replicas=2", *self.lighthouse]
            nodes.start(NODES, [sys.executable, str(lighthouse), *options], {})
        shared = {
            **self.variables,
            "PORT": str(port),
            "STEP_S": str(settings.step_s),
            "WIDTH": str(settings.width),
            "HOLDFAST_MASTER_PORT": str(port),
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        }
        for node in range(self.processes):
            nodes.start(node, self.command(script, port), shared)
        return shared, port

    def _loss(self, course: Course) -> Loss:
        at_s, whole_s = course.killed_s, course.all_nodes_at_s()
        assert whole_s, "all nodes train again"
        new_s = course.survivors_at_s() if self.continues_with_fewer else whole_s
        phases, from_s = {}, at_s
        ends = self.ends
        if course.moment.is_whole_node and ends is _replaced:
            ends = _replaced_node
        for phase, end_s in ends(course).items():
            if (
                end_s is not None and end_s >= from_s
            ):  # An agent may notice the first of several kills.
                phases[phase], from_s = end_s - from_s, end_s
        before = {(m.node, m.step) for m in course.marks if m.name == "step" and m.at_s <= at_s}
        again = {(m.node, m.step) for m in course.after("step", course.survivors)}
        dropped = [m for m in course.after("dropped") if m.at_s <= whole_s]
        return Loss(
            new_step_s=new_s - at_s,
            all_nodes_s=whole_s - at_s,
            repeated_steps=len({step for _, step in before & again}),
            # The batch of the killed rank is in no step, either.
            dropped_batches=len(dropped) + self.continues_with_fewer,
            lost_node_s=_lost_node_s(course, whole_s),
            moved_s=course.moved_s,
            has_fallen_back=self.ends is _replaced
            and course.logged_s("starting all ranks again") is not None,
            phases=phases,
        )


def _lost_node_s(course: Course, until_s: float) -> float:
    """Time of all nodes from the last step before the kill, less the steps in it that are new."""
    steps = [m for m in course.marks if m.name == "step" and m.at_s <= until_s]
    before = [m.at_s for m in steps if m.node == course.survivors[0] and m.at_s <= course.killed_s]
    step_s = statistics.median(b - a for a, b in itertools.pairwise(before))
    new = {(m.node, m.step) for m in steps if m.step > course.furthest}
    return NODES * (until_s - before[-1]) - step_s * len(new)


def _wrapper(script: Path, _port: int) -> list[str]:
    words = ["-m", "holdfast_worker", "run", "--nproc-per-node", "1", str(script)]
    return [sys.executable, *words]


def _torchrun(script: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={NODES}", "--nproc-per-node=1", "--max-restarts=3"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"),
        *("--local-addr=127.0.0.1", str(script)),
    ]


def _replica_group(script: Path, _port: int) -> list[str]:
    options = ["--standalone", "--nproc-per-node=1", "--max-restarts=3"]
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script)]


def _process(script: Path, _port: int) -> list[str]:
    return [sys.executable, str(script)]


WAYS: Final = (
    Way(
        name="in_process",
        replace_node=_start_again,
        label="Holdfast, in_process",
        script=HOLDFAST,
        command=_wrapper,
        ends=_replaced,
        variables={"HOLDFAST_RECOVERY": "in_process"},
    ),
    Way(
        name="elastic",
        replace_node=_start_again,
        label="Holdfast, elastic",
        script=HOLDFAST,
        command=_wrapper,
        ends=_replaced,
        variables={"HOLDFAST_RECOVERY": "in_process", "HOLDFAST_MIN_NODES": "1"},
        is_elastic=True,
    ),
    Way(
        name="restart",
        replace_node=_start_all_again,
        label="Holdfast, restart",
        script=HOLDFAST,
        command=_wrapper,
        ends=_restarted,
        variables={"HOLDFAST_RECOVERY": "restart"},
    ),
    Way(
        name="torchrun",
        replace_node=_start_again,
        label="torchrun --max-restarts",
        script=PLAIN,
        command=_torchrun,
        ends=_restarted,
        # Without the variable, restarted ranks of gloo find the addresses of the old ones, and never meet.
        variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    Way(
        name="torchft",
        replace_node=_start_again,
        label="torchft, defaults",
        script=TORCHFT,
        command=_replica_group,
        ends=_shrunk,
        lighthouse=(),
        continues_with_fewer=True,
    ),
    Way(
        name="torchft-short",
        replace_node=_start_again,
        label="torchft, heartbeat timeout of 1 s",
        script=TORCHFT,
        command=_replica_group,
        ends=_shrunk,
        lighthouse=("--heartbeat_timeout_ms=1000", "--join_timeout_ms=1000"),
        continues_with_fewer=True,
    ),
    Way(
        name="floor",
        replace_node=_use_spare,
        label="floor: a new gloo group",
        script=FLOOR,
        command=_process,
        ends=_floor,
        processes=NODES + 1,
    ),
)
