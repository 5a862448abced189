"""The Slurm launcher: a launch is a shared directory and a batch job that records there.

The launcher keeps no state in memory: any number of services agree, and jobs continue without them. Slurm requeues a
job after losses; where it does not, an observation does.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast_worker.protocol.environment import HOSTED_LOG_SUFFIX

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.crash_loop import restart_pause_s
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused, NotPossibleNow
from holdfast.launchers.slurm import batch_job, launch_state, remote_scripts, scontrol
from holdfast.launchers.slurm.launch_state import LaunchState
from holdfast.launchers.slurm.observe import observe
from holdfast.launchers.slurm.recovery import SlurmAction, SlurmPlan, decide
from holdfast.launchers.slurm.transport import CommandResult, Transport
from holdfast.ports import (
    AvoidedNode,
    Clock,
    EngineInfo,
    Launch,
    LogSource,
    NodeOffer,
    OrphanedResource,
)

REFUSED: Final = 65
"""Exit code of `remote_scripts.SUBMIT` if sbatch rejected the job."""
NOT_SHARED: Final = 66
"""Exit code of `remote_scripts.DRILL` if nodes cannot see the directory of the launch."""
IN_PROGRESS: Final = 17
"""Exit code of `remote_scripts.DRILL` during another drill."""
MAX_PASSES: Final = 4
"""Limit of passes over the records in one observation; more would be a bug.
Each write changes the decision."""
WORKER_DAYS: Final = 7
"""Days without use after which a worker is deleted.
With a lower value, services install their version more often; with a higher value, each recent version takes up a
megabyte."""
_TRANSIENT: Final = re.compile(
    r"Unable to contact|Socket timed out|Zero Bytes|Connection refused|temporarily|Transport endpoint|"
    r"Protocol authentication|in progress|busy",
    re.IGNORECASE,
)
"""Errors of sbatch that may be temporary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmConfig:
    """Configuration of the Slurm launcher."""

    transport: Transport
    paths: batch_job.ClusterPaths
    worker: Callable[[], bytes]
    """Return the worker's files as a tar."""
    avoided: Callable[[], Sequence[AvoidedNode]] = tuple
    """Return the nodes that a new Slurm job avoids."""
    restart_s: float = 0
    """Pause before the first restart after a failure of the program."""


class SlurmLauncher:
    """Launches of one service on one cluster."""

    saves_on_cancel: Final = True
    """A cancel signals the job's script, whose ranks save before it ends."""

    def __init__(self, config: SlurmConfig, clock: Clock) -> None:
        self._transport = config.transport
        self._paths = config.paths
        self._worker = config.worker
        self._avoided = config.avoided
        self._restart_s = config.restart_s
        self._clock = clock
        self._strangers: tuple[OrphanedResource, ...] | None = None

    async def submit(self, launch: Launch) -> None:
        """Submit the launch to sbatch, unless it was submitted or cancelled before.

        Raises:
            LaunchRefused: the job can never start here.
            LauncherUnreachable: the result is unknown; observe, then submit again.
        """
        await asyncio.to_thread(self._submit, launch)

    async def observe(self, key: str) -> Observation:
        """Return the current observation of `key`."""
        return await asyncio.to_thread(self._observe, key)

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; a launch that was not submitted will never start."""
        now_s = str(self._clock.now().timestamp())
        await asyncio.to_thread(
            self._run, remote_scripts.CANCEL, self._paths.launch(key), key, now_s
        )

    def node_offers(self, place: str) -> Sequence[NodeOffer]:
        """Return the price of nodes at a place, which the settings name."""
        micros = self._paths.prices.micros_per_node_hour(place)
        return [
            NodeOffer(place=place, spot_micros=micros, on_demand_micros=micros, is_estimate=True)
        ]

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """End nodes of the running placement as in a preemption, and have Slurm requeue the job.

        Of an elastic job whose ranks wait for a lost node, only `node` ends (None: the last one).

        Raises:
            NotPossibleNow: no placement is running under this key, or its nodes cannot be reached.
        """
        await asyncio.to_thread(self._preempt, key, node, notice_s)

    async def replaces_alone(self, key: str, *, node: int | None) -> bool:
        """Whether the other nodes would run the ranks of a node (None: the last) without it."""
        return await asyncio.to_thread(self._replaces_alone, key, node)

    async def logs(self, key: str) -> Sequence[LogSource]:
        """List the logs of all placements of `key`, by attempt, node and rank."""
        reply = await asyncio.to_thread(
            self._run, remote_scripts.LIST_LOGS, self._paths.launch(key)
        )
        found = (_log_source(line) for line in reply.out.decode().splitlines())
        return sorted(
            found, key=lambda log: (log.attempt, log.node, -1 if log.rank is None else log.rank)
        )

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a log from `offset`; empty at its end and for a missing log."""
        suffix = HOSTED_LOG_SUFFIX if source.is_hosted else ".log"
        file = "node.log" if source.rank is None else f"run/ranks/rank-{source.rank}{suffix}"
        path = f"{source.attempt}/node-{source.node}/{file}"
        folder = self._paths.launch(key)
        return self._run(remote_scripts.READ_LOG, folder, path, str(offset), str(limit)).out

    def keys_with_files(self) -> Sequence[str]:
        """Return the keys of launches that have more than a record in the shared directory."""
        reply = self._run(remote_scripts.LIST_KEYS_WITH_FILES, self._paths.root)
        return [line.removeprefix("./") for line in reply.out.decode().splitlines()]

    def discard(self, key: str) -> None:
        """Delete all files of an ended launch except its record; other launches keep their files."""
        self._run(remote_scripts.DISCARD, self._paths.launch(key), key)

    async def engine_info(self) -> EngineInfo:
        """Return Slurm's version and state.

        Raises:
            LauncherUnreachable: Slurm does not respond, or the shared directory is not writable.
        """
        reply = await asyncio.to_thread(self._run, remote_scripts.ENGINE_INFO, self._paths.root)
        return scontrol.parse_engine_info(reply.out.decode(errors="replace"), self._clock.now())

    @property
    def shared_resources(self) -> str:
        """Describe what users' jobs share on the cluster."""
        return (
            "one cluster account: each job can read the files, tokens and secrets of the others until they have ended; "
            "for isolated projects, run one service per project, each with its own cluster account"
        )

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Jobs that the latest sweep left alone; None before the first sweep."""
        return self._strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Cancel jobs of ended launches, which Slurm may requeue, and delete unused workers."""
        words = (self._paths.root, self._paths.worker, str(WORKER_DAYS))
        await asyncio.to_thread(self._run, remote_scripts.DELETE_OLD_WORKERS, *words)
        reply = await asyncio.to_thread(self._run, remote_scripts.LIST_JOBS, self._paths.root)
        found, foreign = [], []
        for line in reply.out.decode(errors="replace").splitlines():
            job, _, rest = line.partition(" ")
            key, _, comment = rest.partition(" ")
            if comment != batch_job.job_comment(self._paths.root) or (live := is_live(key)):
                continue
            what = f"Slurm job {job} ({key})"
            orphan = OrphanedResource(
                key=key, description=what, since=self._clock.now(), stopped=False
            )
            if live is None:
                foreign.append(orphan)
            else:
                await self.cancel(key)
                found.append(orphan)
        self._strangers = tuple(foreign)
        return found

    def _submit(self, launch: Launch) -> None:
        if self._read_state(launch.key).is_known:
            return  # Checked before anything can be refused: the files of a running launch may have been deleted.
        try:
            options = batch_job.submit_options(launch, self._paths)
            packed = batch_job.pack(launch, self._paths)
            self._install_worker()
            self._sbatch(launch.key, 1, options, packed)
        except LaunchRefused:
            self._run(remote_scripts.UNSUBMIT, self._paths.launch(launch.key))
            raise

    def _sbatch(self, key: str, number: int, options: Sequence[str], packed: bytes = b"") -> None:
        """Submit the `number`-th Slurm job of a launch, unless it was submitted.

        It avoids nodes with unhealthy GPUs, unless the others are too few for it.
        """
        words = (self._paths.launch(key), key, str(number), *options)
        exclude = batch_job.exclude_option(options, self._avoided())
        reply = self._transport.bash(remote_scripts.SUBMIT, *words, *exclude, given=packed)
        if exclude and reply.code == REFUSED and not _TRANSIENT.search(reply.err):
            reply = self._transport.bash(remote_scripts.SUBMIT, *words, given=packed)
        if reply.code == REFUSED and not _TRANSIENT.search(reply.err):
            raise LaunchRefused(f"Slurm rejected the job: {_sbatch_reason(reply.err)}")
        _require_success(reply)

    def _install_worker(self) -> None:
        """Install this version of the worker for the nodes if another service has deleted it."""
        if self._transport.bash(remote_scripts.HAS_WORKER, self._paths.worker).code:
            self._run(remote_scripts.INSTALL_WORKER, self._paths.worker, given=self._worker())

    def _preempt(self, key: str, node: int | None, notice_s: float | None) -> None:
        state = self._read_state(key)
        seen = observe(state, self._clock.now())
        if seen.status is not LaunchStatus.UP or not (state.job and state.job.has_nodes):
            raise NotPossibleNow(f"{key} has no running nodes; its status is {seen.status}")
        single = self._single_node(key, state, node)
        words = (
            str(_newest_attempt(state)),
            "" if single is None else str(single),
            str(math.ceil(notice_s or 0)),
        )
        reply = self._transport.bash(remote_scripts.DRILL, self._paths.launch(key), *words)
        if reply.code == NOT_SHARED:
            raise NotPossibleNow(
                f"{key} cannot be preempted: not all of its nodes have started, or see {self._paths.root}"
            )
        if reply.code == IN_PROGRESS:
            raise NotPossibleNow(f"{key} is being preempted already")
        _require_success(reply)

    def _replaces_alone(self, key: str, node: int | None) -> bool:
        return self._single_node(key, self._read_state(key), node) is not None

    def _single_node(self, key: str, state: LaunchState, node: int | None) -> int | None:
        """Return the node (None: the last) without which the others would continue; None if none."""
        newest = max(state.numbered("placed"), default=0)
        if not newest or not (min_nodes := state.order.get("min_nodes")):
            return None
        nodes = range(len(state.facts[f"placed.{newest}"]["nodes"].split()))
        lost = {each for each, _ in state.node_losses(newest)}
        standing = [each for each in nodes if each not in lost]
        chosen = standing[-1] if node is None else node
        if chosen == 0 or chosen not in standing or len(standing) <= min_nodes:
            return None
        words = (self._paths.launch(key), str(_newest_attempt(state)))
        return None if self._transport.bash(remote_scripts.WAITS, *words).code else chosen

    def _observe(self, key: str) -> Observation:
        """Read, decide and write until the records are stable, then perform the action."""
        for _ in range(MAX_PASSES):
            now = self._clock.now()
            state = self._read_state(key)
            plan = decide(state, now.timestamp())
            if plan.facts:
                self._write(key, plan)
            self._act(key, state, plan)
            if not plan.facts:
                return observe(state, now)
        raise LauncherUnreachable(f"the records of {key} changed during every read; retrying")

    def _act(self, key: str, state: LaunchState, plan: SlurmPlan) -> None:
        submitted = state.numbered("submitted")
        match plan.action:
            case SlurmAction.REQUEUE:
                assert state.job is not None, "a running placement has a Slurm job"
                words = (submitted[max(submitted)]["job"], str(state.job.restarts))
                self._run(remote_scripts.REQUEUE, self._paths.launch(key), *words)
            case SlurmAction.SUBMIT:
                try:
                    pause = _begin_option(self._restart_s, plan.failures)
                    self._sbatch(key, max(submitted) + 1, [*state.order["options"], *pause])
                except LaunchRefused as refusal:
                    self._record_refusal(key, refusal.detail)
            case None:
                pass

    def _record_refusal(self, key: str, detail: str) -> None:
        """Record a refused resubmission: the cluster has changed since it accepted the job."""
        end = {"at": self._clock.now().timestamp(), "outcome": Outcome.FAILED, "exit_code": ""}
        self._write(key, SlurmPlan({"ended": {**end, "detail": detail}}))

    def _write(self, key: str, plan: SlurmPlan) -> None:
        words = [
            word
            for name, fact in plan.facts.items()
            for word in (name, launch_state.format_fact(fact))
        ]
        self._run(remote_scripts.WRITE_FACTS, self._paths.launch(key), *words)

    def _read_state(self, key: str) -> LaunchState:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", key), "keys are generated by Holdfast"
        assert key not in {".", ".."}, "keys are generated by Holdfast"
        reply = self._run(remote_scripts.READ_STATE, self._paths.launch(key))
        return launch_state.parse(reply.out.decode(errors="replace"))

    def _run(self, text: str, *words: str, given: bytes = b"") -> CommandResult:
        return _require_success(self._transport.bash(text, *words, given=given))


def _newest_attempt(state: LaunchState) -> int:
    """Return the number of the newest placement's attempt."""
    return int(state.order["first_attempt"]) + max(state.numbered("placed")) - 1


def _begin_option(restart_s: float, failures: int) -> list[str]:
    """Return the option of sbatch for the pause before a restart after a program failure.

    It overrides an earlier one.
    """
    pause_s = round(restart_pause_s(restart_s, failures)) if failures else 0
    return [f"--begin=now+{pause_s}"] if pause_s else []


def _require_success(reply: CommandResult) -> CommandResult:
    """Return a successful result.

    Raises:
        LauncherUnreachable: the command failed, perhaps temporarily.
    """
    if reply.code:
        raise LauncherUnreachable(
            f"a command on Slurm's machine failed: {reply.err or f'exit code {reply.code}'}"
        )
    return reply


def _sbatch_reason(words: str) -> str:
    return words.replace("sbatch: error: ", "").strip() or "sbatch gave no reason"


def _log_source(line: str) -> LogSource:
    size, _, path = line.partition(" ")
    attempt, node, *_, name = path.split("/")
    rank = re.fullmatch(rf"rank-(\d+)(?:\.log|({re.escape(HOSTED_LOG_SUFFIX)}))", name)
    return LogSource(
        attempt=int(attempt),
        node=int(node.removeprefix("node-")),
        rank=int(rank[1]) if rank else None,
        size_bytes=int(size),
        is_hosted=rank is not None and rank[2] is not None,
    )
