"""Driver of runs on several groups of nodes of this machine, with one rank for each node, which a launcher starts one by one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast_worker.protocol.environment import WAITS_FILE, Exit
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.telemetry.spool import read_spool, spool_file
from worker.support.nodes_driver import SCRIPT, Nodes, is_held, release
from worker.support.report_server import ReportServer
from worker.support.run_driver import TIMEOUT_S, RunDriver, free_port, wait_until

NAMES = ("head", "east", "west", "north")
NUMBERED = ("HOLDFAST_ATTEMPT", "HOLDFAST_EPOCH", "HOLDFAST_SPOOL", "HOLDFAST_RUN_DIR")


class GroupsDriver(RunDriver):
    """One job, whose environment is the same for all of its lives."""

    def environment(self) -> dict[str, str]:
        """Environment of a node, as SkyPilot sets it."""
        return {k: v for k, v in super().environment().items() if k not in NUMBERED}

    @property
    def run_dir(self) -> Path:
        """Home directory of the node that is started."""
        return Path(self.extra["HOME"])


class Groups:
    """A run on several groups of nodes. Each start of a group is on new machines."""

    def __init__(
        self,
        path: Path,
        sizes: Sequence[int] = (1, 1, 1),
        steps: int = 24,
        script: Sequence[str] | None = None,
        *,
        every: str = "5 steps",
        has_workdirs: bool = False,
        **extra: str,
    ) -> None:
        """`sizes`: number of nodes of each group. `script`: another script with its first arguments.

        `every`: see `RunDriver`. `has_workdirs`: the nodes run in the directories `n0`, `n1` and so on instead of that of the tests.
        """
        self.path = path
        self.sizes = sizes
        self.service, self.port = ReportServer(), free_port()
        self._script = script or (SCRIPT, str(steps), str(path))
        self._arguments: tuple[str, ...] = ()
        self._master_port = str(free_port())
        self._driver = GroupsDriver(path, every=every)
        self._has_workdirs = has_workdirs
        self._lives = [0] * len(sizes)
        self._extra = {"HOLDFAST_MAX_RESTARTS": "1", **extra}
        self.wrappers: dict[int, list[subprocess.Popen[str]]] = {}
        """By group: one for each of its nodes."""

    def start(self, *arguments: str) -> None:
        """Start all groups."""
        self._arguments = arguments
        for group in range(len(self.sizes)):
            self.start_group(group)

    def start_group(self, group: int, *arguments: str) -> None:
        """Start a group on new machines; `arguments`: additional ones of its script from now on."""
        self._lives[group] += 1
        self._arguments = (*self._arguments, *arguments)
        self.wrappers[group] = [self._start_node(group, rank) for rank in range(self.sizes[group])]

    def start_next_command(self, group: int, steps: int) -> None:
        """Start another program on the machines of a group, after the first one has ended there."""
        self._script = (SCRIPT, str(steps), str(self.path))
        self._arguments = ()
        self.wrappers[group] = [self._start_node(group, rank) for rank in range(self.sizes[group])]

    def _start_node(self, group: int, rank: int) -> subprocess.Popen[str]:
        self._driver.extra = {
            "HOLDFAST_URL": f"http://127.0.0.1:{self.port}",
            "HOLDFAST_TOKEN": "a-token",
            "HOLDFAST_GROUP": NAMES[group],
            "HOLDFAST_FIRST_NODE": str(sum(self.sizes[:group])),
            "HOLDFAST_TOTAL_NODES": str(sum(self.sizes)),
            "HOLDFAST_MASTER_PORT": self._master_port,
            "HOME": str(self._home(group, rank)),
            "SKYPILOT_INTERNAL_JOB_ID": "1",
            "SKYPILOT_MANAGED_JOB_ID": str(7 + group),
            "SKYPILOT_CLUSTER_INFO": '{"cloud": "None"}',
            "SKYPILOT_NUM_NODES": str(self.sizes[group]),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * self.sizes[group]),
            **self._extra,
        }
        if self._has_workdirs:
            self._driver.workdir = self.path / f"n{sum(self.sizes[:group]) + rank}"
        return self._driver.start_wrapper("--nproc-per-node", "1", *self._script, *self._arguments)

    def _home(self, group: int, rank: int = 0, life: int | None = None) -> Path:
        return self.path / f"{NAMES[group]}-{rank}-{life or self._lives[group]}"

    def run_dir(self, group: int, rank: int = 0) -> RunDir:
        """The run directory of a node of a group, on its newest machine."""
        number = sum(self.sizes[:group]) + rank
        return RunDir(self._home(group, rank) / f".holdfast/lesson/1/node-{number}")

    def has_trained(self, *groups: int) -> bool:
        """Whether all nodes, or those of some groups, have completed a step with their current ranks."""
        return all(
            self.run_dir(group, rank).has_trained()
            for group in (groups or range(len(self.sizes)))
            for rank in range(self.sizes[group])
        )

    def replaces(self) -> bool:
        """Whether all nodes have trained, and node 0 would wait for one that is lost."""
        return self.has_trained() and (self.run_dir(0).path / WAITS_FILE).exists()

    def kill(self, group: int) -> None:
        """Kill all processes of all nodes of a group."""
        for wrapper in self.wrappers[group]:
            Nodes.signal_processes(wrapper, signal.SIGKILL)
        for wrapper in self.wrappers[group]:
            wrapper.communicate()

    def drill(self, group: int, within_s: float = 0.0) -> None:
        """Request the preemption of a group, as users do, and wait until its nodes have ended."""
        first = sum(self.sizes[:group])
        nodes = [*range(first, first + self.sizes[group])]
        name = f"2026-03-01T00:00:{len(self.service.drills):02}Z"
        self.service.drills.append({"requested_at": name, "nodes": nodes, "within_s": within_s})
        if not first and within_s:  # All ranks save.
            wait_until(self.run_dir(0).is_noticed)
            self.release()
        logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in self.wrappers[group]]
        assert {w.returncode for w in self.wrappers[group]} == {Exit.PREEMPTED}, "\n".join(logs)

    def is_running(self, *groups: int) -> bool:
        """Whether all wrappers of groups run."""
        return all(wrapper.poll() is None for group in groups for wrapper in self.wrappers[group])

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Serve the service."""
        with self.service.opened(self.port):
            yield

    def release(self, step: int | None = None) -> None:
        """See `Nodes`."""
        release(self.path, step)

    def is_held(self, step: int) -> bool:
        """See `Nodes`."""
        return all(is_held(self.path, step, rank) for rank in range(sum(self.sizes)))

    def finish(self) -> str:
        """Wait for the end, also of held ranks, and return what the wrappers logged."""
        self.release()
        standing = [wrapper for group in self.wrappers.values() for wrapper in group]
        logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in standing]
        assert {wrapper.returncode for wrapper in standing} == {Exit.DONE}, "\n".join(logs)
        return "".join(logs)

    def preempt_leader(self, step: int) -> list[int]:
        """Signal the wrappers of the group of node 0 while all ranks are held in a step, and return their exit codes.

        The ranks go on once those of this group have the notice.
        """
        wait_until(lambda: self.is_held(step))
        for wrapper in self.wrappers[0]:
            wrapper.send_signal(signal.SIGTERM)
        wait_until(lambda: not any(is_held(self.path, step, r) for r in range(self.sizes[0])))
        self.release()
        return [wrapper.wait(TIMEOUT_S) for wrapper in self.wrappers[0]]

    def leave(self, *groups: int) -> tuple[list[int], str]:
        """Signal the wrappers of groups, as SkyPilot does; return their exit codes and logs."""
        chosen = [wrapper for group in groups for wrapper in self.wrappers[group]]
        for wrapper in chosen:
            wrapper.send_signal(signal.SIGTERM)
        logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in chosen]
        return [wrapper.returncode for wrapper in chosen], "".join(logs)

    def reports(self, *kinds: ReportKind) -> list[Report]:
        """Reports of all leaders in order, of these kinds or of all."""
        found: list[Report] = []
        for life in range(1, self._lives[0] + 1):
            spool = self._home(0, life=life) / ".holdfast/lesson/1/spool"
            if spool.exists():
                found += [report for report, _ in read_spool(spool_file(spool, 0))]
        return [report for report in found if not kinds or report.kind in kinds]

    def counts(self, *kinds: ReportKind) -> list[int]:
        """Number of reports of each kind."""
        return [len(self.reports(kind)) for kind in kinds]

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint in the store."""
        commits = (self.path / "store/lesson/commits").glob("*.json")
        return max(int(commit.name[:12]) for commit in commits)

    @property
    def results(self) -> list[str]:
        """Digests of the weights of all ranks."""
        return [(self.path / f"result-{rank}").read_text() for rank in range(sum(self.sizes))]

    def losses(self, rank: int) -> list[str]:
        """The loss of each step, of all processes of a rank."""
        return (self.path / f"losses-{rank}").read_text().splitlines()
