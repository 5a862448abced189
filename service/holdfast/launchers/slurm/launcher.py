"""The port, over a Slurm cluster: a launch is a folder that the nodes share, and a batch job that keeps its books in it.

It keeps nothing in memory: any number of services agree, and the job goes on without any of them. Slurm queues it again after
losses; where it does not, a look does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.slurm import batch_job, launch_state, remote_scripts, scontrol
from holdfast.launchers.slurm.decide import SlurmAction, SlurmPlan, decide
from holdfast.launchers.slurm.launch_state import LaunchState
from holdfast.launchers.slurm.observe import observe
from holdfast.launchers.slurm.transport import Reply, Transport
from holdfast.ports import Clock, EngineInfo, Launch, LogSource, OrphanedResource

REFUSED: Final = 65
"""What `phrases.SUBMIT` ends with where sbatch did not take the job."""
TURNS: Final = 4
"""Looks at the books within one: what was written changes what follows. More are a bug."""
WORKER_DAYS: Final = 7
"""That a worker lies unused, until it is removed. Smaller: a service of that version has to bring it again. Bigger: each version of the last
days takes up its megabyte."""
_PASSING: Final = re.compile(
    r"Unable to contact|Socket timed out|Zero Bytes|Connection refused|temporarily|Transport endpoint|"
    r"Protocol authentication|in progress|busy",
    re.IGNORECASE,
)
"""What sbatch says where the same may be taken later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmConfig:
    """How this service and its cluster stand to each other."""

    transport: Transport
    place: batch_job.ClusterPaths
    worker: Callable[[], bytes]
    """The files of the worker, as a tar."""


class SlurmLauncher:
    """Launches of one service on one cluster."""

    saves_on_cancel: Final = True
    """The script of the job is told, and has its ranks save before it ends."""

    def __init__(self, terms: SlurmConfig, clock: Clock) -> None:
        self._transport = terms.transport
        self._place = terms.place
        self._worker = terms.worker
        self._clock = clock
        self._strangers: tuple[OrphanedResource, ...] | None = None

    async def submit(self, launch: Launch) -> None:
        """Hand the launch to sbatch, unless it was submitted or cancelled before.

        Raises:
            LaunchRefused: the job can never be started here.
            LauncherUnreachable: nobody knows whether Slurm has it; look, then submit again.
        """
        await asyncio.to_thread(self._submit, launch)

    async def look(self, key: str) -> Observation:
        """What stands under `key` now."""
        return await asyncio.to_thread(self._look, key)

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        now_s = str(self._clock.now().timestamp())
        await asyncio.to_thread(
            self._say, remote_scripts.CANCEL, self._place.launch(key), key, now_s
        )

    async def logs(self, key: str) -> Sequence[LogSource]:
        """The logs that the placements of `key` have left so far, by attempt, node and rank."""
        reply = await asyncio.to_thread(self._say, remote_scripts.LOGS, self._place.launch(key))
        found = (_log_source(line) for line in reply.out.decode().splitlines())
        return sorted(
            found, key=lambda log: (log.attempt, log.node, -1 if log.rank is None else log.rank)
        )

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end, and for a log that is not there."""
        file = "node.log" if source.rank is None else f"run/ranks/rank-{source.rank}.log"
        path = f"{source.attempt}/node-{source.node}/{file}"
        folder = self._place.launch(key)
        return self._say(remote_scripts.READ, folder, path, str(offset), str(limit)).out

    def kept(self) -> Sequence[str]:
        """Keys of the launches that have more than a record in the shared folder."""
        reply = self._say(remote_scripts.KEPT, self._place.root)
        return [line.removeprefix("./") for line in reply.out.decode().splitlines()]

    def discard(self, key: str) -> None:
        """Remove all files of a launch that is over but its record; a launch that may still run keeps them."""
        self._say(remote_scripts.DISCARD, self._place.launch(key), key)

    async def vitals(self) -> EngineInfo:
        """What Slurm says of itself now.

        Raises:
            LauncherUnreachable: it does not answer, or the shared folder cannot be written.
        """
        reply = await asyncio.to_thread(self._say, remote_scripts.VITALS, self._place.root)
        return scontrol.read(reply.out.decode(errors="replace"), self._clock.now())

    @property
    def shares(self) -> str:
        """What jobs of users share on the cluster."""
        return (
            "one cluster account: each may read the files of the others, their tokens, and their secrets until they have ended; "
            "give projects that must not a service each, with a cluster account each"
        )

    @property
    def strangers(self) -> Sequence[OrphanedResource] | None:
        """Jobs that the newest sweep left alone; None before the first."""
        return self._strangers

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        """Jobs of ours whose launch is over, cancelled. Slurm may bring one back that nobody waits for any more.

        Workers of other versions go, too, that nobody needs any more.
        """
        words = (self._place.root, self._place.worker, str(WORKER_DAYS))
        await asyncio.to_thread(self._say, remote_scripts.OLD_WORKERS, *words)
        reply = await asyncio.to_thread(self._say, remote_scripts.STRAYS, self._place.root)
        found, strangers = [], []
        for line in reply.out.decode(errors="replace").splitlines():
            job, _, rest = line.partition(" ")
            key, _, comment = rest.partition(" ")
            if comment != batch_job.mark(self._place.root) or (live := is_live(key)):
                continue
            what = f"Slurm job {job} ({key})"
            stray = OrphanedResource(key=key, what=what, since=self._clock.now(), stopped=False)
            if live is None:
                strangers.append(stray)
            else:
                await self.cancel(key)
                found.append(stray)
        self._strangers = tuple(strangers)
        return found

    def _submit(self, launch: Launch) -> None:
        if self._books(launch.key).is_known:
            return  # Before anything can be refused: the files of a launch that runs may be gone by now.
        try:
            options = batch_job.options(launch, self._place)
            packed = batch_job.pack(launch, self._place)
            self._bring_worker()
            self._sbatch(launch.key, 1, options, packed)
        except LaunchRefused:
            self._say(remote_scripts.UNSUBMIT, self._place.launch(launch.key))
            raise

    def _sbatch(self, key: str, number: int, options: Sequence[str], packed: bytes = b"") -> None:
        """Hand over the `number`-th Slurm job of a launch, unless it was."""
        words = (self._place.launch(key), key, str(number), *options)
        reply = self._transport.bash(remote_scripts.SUBMIT, *words, given=packed)
        if reply.code == REFUSED and not _PASSING.search(reply.err):
            raise LaunchRefused(f"Slurm refuses the job: {_told_by_sbatch(reply.err)}")
        _expect(reply)

    def _bring_worker(self) -> None:
        """See to it that the nodes have the worker of this version, which another service may have removed."""
        if self._transport.bash(remote_scripts.KNOWS_WORKER, self._place.worker).code:
            self._say(remote_scripts.WORKER, self._place.worker, given=self._worker())

    def _look(self, key: str) -> Observation:
        """Look, judge, write, and look again at what was written; the deed comes last."""
        for _ in range(TURNS):
            now = self._clock.now()
            seen = self._books(key)
            verdict = decide(seen, now.timestamp())
            if verdict.facts:
                self._write(key, verdict)
            self._act(key, seen, verdict)
            if not verdict.facts:
                return observe(seen, now)
        raise LauncherUnreachable(f"the books of {key} change under every look; looking again")

    def _act(self, key: str, seen: LaunchState, verdict: SlurmPlan) -> None:
        submitted = seen.numbered("submitted")
        match verdict.deed:
            case SlurmAction.REQUEUE:
                assert seen.row is not None, "what stands has a row"
                words = (submitted[max(submitted)]["job"], str(seen.row.restarts))
                self._say(remote_scripts.REQUEUE, self._place.launch(key), *words)
            case SlurmAction.SUBMIT:
                try:
                    self._sbatch(key, max(submitted) + 1, seen.order["options"])
                except LaunchRefused as refusal:
                    self._give_up(key, refusal.detail)
            case None:
                pass

    def _give_up(self, key: str, detail: str) -> None:
        """What was taken once is not any more: the cluster has changed meanwhile."""
        end = {"at": self._clock.now().timestamp(), "outcome": Outcome.FAILED, "exit_code": ""}
        self._write(key, SlurmPlan({"ended": {**end, "detail": detail}}))

    def _write(self, key: str, verdict: SlurmPlan) -> None:
        words = [
            word
            for name, fact in verdict.facts.items()
            for word in (name, launch_state.text_of(fact))
        ]
        self._say(remote_scripts.RECORD, self._place.launch(key), *words)

    def _books(self, key: str) -> LaunchState:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", key), "keys are made by Holdfast, never typed"
        assert key not in {".", ".."}, "keys are made by Holdfast, never typed"
        reply = self._say(remote_scripts.LOOK, self._place.launch(key))
        return launch_state.read(reply.out.decode(errors="replace"))

    def _say(self, text: str, *words: str, given: bytes = b"") -> Reply:
        return _expect(self._transport.bash(text, *words, given=given))


def _expect(reply: Reply) -> Reply:
    """A reply that is good.

    Raises:
        LauncherUnreachable: something did not work that may work later.
    """
    if reply.code:
        raise LauncherUnreachable(f"Slurm's machine says: {reply.err or f'exit code {reply.code}'}")
    return reply


def _told_by_sbatch(words: str) -> str:
    return words.replace("sbatch: error: ", "").strip() or "sbatch gives no reason"


def _log_source(line: str) -> LogSource:
    size, _, path = line.partition(" ")
    attempt, node, *_, name = path.split("/")
    rank = re.fullmatch(r"rank-(\d+)\.log", name)
    return LogSource(
        attempt=int(attempt),
        node=int(node.removeprefix("node-")),
        rank=int(rank[1]) if rank else None,
        size_bytes=int(size),
    )
