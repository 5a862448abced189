"""One node of a run: torchrun under it, notices to its ranks, reports to the service, and the true exit code."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast_worker import debugging
from holdfast_worker.bond import PORTS, Meeting
from holdfast_worker.cause import Cause, is_agreed
from holdfast_worker.config import COURIER, WRAPPER, Config, surroundings
from holdfast_worker.console import tell
from holdfast_worker.courier import Courier
from holdfast_worker.doorstep import Doorstep
from holdfast_worker.echo import Echo
from holdfast_worker.epitaph import Epitaph
from holdfast_worker.hold import hold_s
from holdfast_worker.incarnation import Incarnation
from holdfast_worker.metadata import Metadata
from holdfast_worker.moment import now
from holdfast_worker.outside import Outside
from holdfast_worker.postbox import Postbox
from holdfast_worker.reach import watch_for_reach
from holdfast_worker.rundir import Left, RunDir
from holdfast_worker.shape import Shape
from holdfast_worker.stores import open_store
from holdfast_worker.topology import Topology
from holdfast_worker.watchdog import Watchdog
from holdfast_worker.watcher import Watcher
from holdfast_worker.wire import Env, Exit

LOOK_S: Final = 0.1
"""How often the node is looked after. Longer delays a notice, shorter burns a core."""

SIGNALS: Final = "SIGINT,SIGHUP,SIGQUIT"
"""On which torchrun ends its ranks. Not on SIGTERM, as it would by itself: that is a notice, and they save first."""


class Node:
    """A node while its ranks run."""

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        config: Config,
        outside: Outside,
        also: Mapping[str, str],
    ) -> None:
        """`also` is what the ranks find in their environment over what this process has."""
        self._also = also
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._outside = outside
        self._epitaph = None if topology.node_rank else Epitaph(config, run_dir)

    def run(self, script: Sequence[str], shape: Shape | None) -> int:
        """The exit code of a whole run of `script`, as the ranks meant it. `shape` is None for one per GPU, on nodes alike."""
        self._run_dir.clear()
        with self._outside.opened():
            code = self._run_script(script, shape)
            if (why := self._outside.replaced) is not None:
                tell(f"the service has no use for this placement any more: {why}")
                code = Exit.FENCED
            if self._epitaph and code != Exit.FENCED:
                self._epitaph.write(code)
            if code in {Exit.PREEMPTED, Exit.FENCED}:
                self._hold()
        return Exit.FENCED if self._outside.replaced is not None else code

    def _run_script(self, script: Sequence[str], shape: Shape | None) -> int:
        if not Path(script[0]).is_file():
            words = f"there is no script {script[0]} in {Path.cwd()}"
            tell(words)
            with _going_on():
                self._run_dir.leave(Left("failed", Exit.USAGE, 0, words))
            return Exit.USAGE
        at = self._topology
        shape = shape or Shape.of([_ranks_of(at)], at.nodes)
        return self._run_ranks(script, shape.of_node(at.node_rank))

    def _run_ranks(self, script: Sequence[str], ranks: range) -> int:
        echo = Echo(self._run_dir.log(ranks[0]), sys.stdout.buffer)
        watchdog = Watchdog(
            self._run_dir,
            ranks,
            _meeting(self._topology, self._config),
            self._config.max_stall,
        )
        watch_for_reach(self._topology)
        with watchdog.opened():
            agent = subprocess.Popen(
                self._command(script, len(ranks)), env=self._environment(), start_new_session=True
            )
            while _is_running(agent):
                echo.copy()
                self._look_after(agent, watchdog)
            echo.copy()
            watchdog.conclude(self._exit_code(agent.returncode))
        if watchdog.cause and not is_agreed(self._run_dir.left()):
            return watchdog.cause.exit_code
        return self._exit_code(agent.returncode)

    def _look_after(self, agent: subprocess.Popen[bytes], watchdog: Watchdog) -> None:
        """What there is to be done now and then while the ranks run."""
        if self._outside.replaced is None:
            self._pass_on()
        else:
            watchdog.end(Cause(Exit.FENCED, 0, self._outside.replaced, is_death=False))
        watchdog.look()
        if watchdog.is_to_kill:
            self._kill(agent)

    def _command(self, script: Sequence[str], ranks: int) -> list[str]:
        at = self._topology
        return [
            # -P: a module beside the script must not stand in for one that torchrun needs.
            *(sys.executable, "-P", "-m", "holdfast_worker.agent"),
            f"--nnodes={at.nodes}",
            f"--node-rank={at.node_rank}",
            f"--nproc-per-node={ranks}",
            f"--master-addr={at.master_address}",
            f"--master-port={at.master_port}",
            "--max-restarts=0",
            f"--signals-to-handle={SIGNALS}",
            # Without the dashes, torchrun takes what the script is given for abbreviations of its own options.
            *("-m", "--", "holdfast_worker.entry"),
            *script,
        ]

    def _environment(self) -> dict[str, str]:
        env = {
            **_of_torch(self._run_dir),
            **_of_nccl(self._run_dir),
            **surroundings(),
            **self._also,
            Env.RUN_DIR: str(self._run_dir.path),
            COURIER: "1",
            WRAPPER: str(os.getpid()),
        }
        if self._config.spool:
            env[Env.SPOOL] = str(self._config.spool)
        return env

    def _pass_on(self) -> None:
        """Hand on to the ranks what was heard. They are told, and not torchrun: that would kill them soon after."""
        hinted_at = self._outside.hint()
        if hinted_at:
            with _going_on():
                self._run_dir.hint(hinted_at)
        notice = self._outside.notice()
        if notice:
            with _going_on():
                self._run_dir.notice(notice.deadline)
            self._signal_ranks(signal.SIGTERM)

    def _kill(self, agent: subprocess.Popen[bytes]) -> None:
        """End everything at once; ranks that have not registered yet are tied to the agent."""
        self._signal_ranks(signal.SIGKILL)
        agent.kill()

    def _signal_ranks(self, which: signal.Signals) -> None:
        for pid in self._run_dir.registered().values():
            with suppress(ProcessLookupError):
                os.kill(pid, which)

    def _exit_code(self, torchrun_code: int) -> int:
        """What the ranks meant; torchrun says 1 whatever they said."""
        left = self._run_dir.left()
        if left and left.exit_code not in (Exit.DONE, Exit.FAILED):
            return left.exit_code
        if torchrun_code == 0:
            return Exit.DONE
        if self._run_dir.is_noticed() and not self._run_dir.registered():
            return Exit.PREEMPTED
        failure = self._run_dir.failure()
        if failure:
            return failure.exit_code
        return 128 - torchrun_code if torchrun_code < 0 else torchrun_code

    def _hold(self) -> None:
        """Stay until the node is taken, where our end would be taken for that of the program: see `hold`."""
        if self._config.is_numbered or not self._config.is_managed or self._outside.is_signalled:
            return
        for_s = hold_s(self._run_dir.deadline(), now())
        tell(
            f"waiting up to {for_s:.0f} s for the node to be taken, "
            "as an end before that would look like a failure"
        )
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and not self._outside.is_signalled:
            time.sleep(LOOK_S)


def launch(
    script: Sequence[str],
    ranks: Sequence[int] | None,
    metadata: Metadata = Metadata(),
    *,
    debug: bool = False,
) -> int:
    """The exit code of `script`, run on this node with as many processes as `ranks` says for it: one number for each node, or
    one for all. None means as many as there are GPUs.

    `metadata` is asked for notices where the launcher recovers the job by itself, and so does not pass them on. `debug` has the
    ranks say more, and be two unless `ranks` says otherwise.
    """
    try:
        config = Config.of_node(surroundings())
        topology = Topology.read(surroundings())
        if debug:
            debugging.check(topology)
            ranks = ranks or [debugging.RANKS]
        shape = Shape.of(ranks, topology.nodes) if ranks else None
        topology = topology.with_a_free_port()
    except ValueError as error:
        tell(str(error))
        return Exit.USAGE
    incarnation = None if config.is_numbered else _settle(config)
    if incarnation:
        run_dir = incarnation.run_dir(topology.node_rank)
        config = replace(config, run_dir=run_dir, spool=incarnation.spool)
    path = config.run_dir or Path(tempfile.mkdtemp(prefix="holdfast-run-"))
    watcher = Watcher(metadata, config.cloud) if incarnation else None
    outside = Outside(_courier(config, topology, incarnation), watcher)
    also = debugging.VARIABLES if debug else {}
    return Node(topology, RunDir(path), config, outside, also).run(script, shape)


def _settle(config: Config) -> Incarnation:
    """What this placement is, in the home directory, or for want of one where everybody may write."""
    try:
        return Incarnation.settle(config)
    except OSError as error:
        elsewhere = Path(tempfile.gettempdir())
        tell(f"the home directory cannot be used, {elsewhere} is taken instead: {error}")
        return Incarnation.settle(replace(config, home=elsewhere))


def _courier(config: Config, topology: Topology, incarnation: Incarnation | None) -> Courier | None:
    """Who delivers the reports; None on all nodes but the first, which alone has any, and without a service."""
    if topology.node_rank or not (config.url and config.spool):
        return None
    name = incarnation.name if incarnation else None
    doorstep = Doorstep(config.url, config.job, config.token, name)
    postbox = _postbox(config, config.spool, incarnation)
    return Courier(doorstep, config.spool, config.attempt, incarnation, postbox=postbox)


def _postbox(config: Config, spool: Path, incarnation: Incarnation | None) -> Postbox | None:
    """Where reports go that cannot be delivered; None without a store."""
    if not config.store:
        return None
    return Postbox(
        partial(open_store, config.store, config.job), spool, config.attempt, incarnation
    )


def _of_torch(run_dir: RunDir) -> dict[str, str]:
    """What torch writes down by itself, as when a collective took too long, is to be found with the rest."""
    if any(
        name in surroundings()
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    ):
        return {}
    file = str(run_dir.hang / "torch_rank_")
    return {"TORCH_FR_DUMP_TEMP_FILE": file, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def _of_nccl(run_dir: RunDir) -> dict[str, str]:
    """NCCL writes how it connects ranks, beside their logs and as it starts alone; unless somebody has told it what to say."""
    if any(name in surroundings() for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
        "NCCL_DEBUG_FILE": str(run_dir.nccl / "%p.log"),
    }


def _meeting(topology: Topology, config: Config) -> Meeting:
    """Where the wrappers of a run meet: beside the ranks. The token keeps away who merely finds the port."""
    at = topology
    told = (config.job, config.attempt, config.token, at.master_address, at.master_port, at.nodes)
    name = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    above = at.master_port + PORTS < 1 << 16
    ports = [at.master_port + (1 if above else -1) * (i + 1) for i in range(PORTS)]
    return Meeting(at.node_rank, at.nodes, at.master_address, ports, name)


@contextmanager
def _going_on() -> Iterator[None]:
    """What cannot be written is said. A full disk is no reason to lose the work, which is saved elsewhere."""
    try:
        yield
    except OSError as error:
        tell(f"the run directory cannot be written: {error}")


def _ranks_of(topology: Topology) -> int:
    """One for each GPU of this node, and one where there is none."""
    if topology.gpus_per_node is not None:
        return topology.gpus_per_node or 1
    import torch  # noqa: PLC0415 - seconds that a launcher who names the number need not pay

    return torch.cuda.device_count() or 1


def _is_running(agent: subprocess.Popen[bytes]) -> bool:
    try:
        agent.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return True
    return False
