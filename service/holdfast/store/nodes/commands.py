"""Commands on the nodes of jobs: requested by users, run by the wrapper of a node.

Shells are commands with a terminal; `shells` has their input and output.

A command is run at most once: its wrapper announces the start, which one wrapper may do, and repeats the announcement under the same name.
What a user reads about a command that its node does not take, or does not finish, follows from the row, the job and the time.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast_worker.protocol.node_commands import MAX_OUTPUT_STREAM_BYTES, CommandOutput
from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, select, update

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.jobs.job import Job, State
from holdfast.errors import NotFound, NotPossibleNow, TooManyRequests
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log
from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import node_commands, node_terminals

START_WITHIN: Final = timedelta(seconds=60)
"""Time in which a node has to take a command. With a lower value, a node in a restart of the service misses it; with a higher
value, a user waits longer for a node that never takes it."""
SILENT: Final = timedelta(seconds=90)
"""Time after its timeout in which the end of a command has to be reported. A lower value gives up in a restart of the service; a
higher value has a user wait for a node that is gone."""
KEEP: Final = timedelta(hours=1)
"""Time for which a command and its output are kept, and a shell after the last request of its client. A lower value may lose
what a client is reading; a higher value fills the database."""
MAX_OPEN: Final = 100
"""Commands of a job that are kept at once. A lower value refuses a look at all nodes; a higher value fills the database."""
REFRESH_S: Final = 0.5
"""Seconds for which known commands are not looked up again. A lower value adds queries; a higher value delays commands."""


class CommandState(StrEnum):
    """How far a command is."""

    WAITING = "waiting"
    """Its node has not taken it yet."""
    RUNNING = "running"
    ENDED = "ended"
    """It has ended, or its node will not report an end any more."""


@dataclass(frozen=True, slots=True)
class NewTerminal:
    """The terminal of a user who asks for a shell."""

    type: str
    """As in TERM."""
    columns: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedCommand:
    """A command on a node."""

    id: str
    job_id: str
    attempt: int
    node: int
    command: Sequence[str]
    timeout_s: float
    requested_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    """None until it has ended, and if its node reported no end."""
    detail: str
    stdout: bytes
    stderr: bytes
    terminal: str | None
    """Type of its terminal; None for a command without one."""

    def seen(self, job: Job, now: datetime) -> tuple[CommandState, str]:
        """How far it is, and what is not normal about it as a sentence; empty if nothing is."""
        if self.ended_at is not None:
            return CommandState.ENDED, self.detail
        has_left = job.attempt != self.attempt or not job.placed
        if self.started_at is None:
            if has_left:
                return CommandState.ENDED, f"node {self.node} left before it took the command"
            if now - self.requested_at > START_WITHIN:
                old = ", or its worker is of a version without shells" if self.terminal else ""
                return CommandState.ENDED, (
                    f"node {self.node} did not take the command within {START_WITHIN.seconds} s: it does not reach this service, "
                    f"or `holdfast-worker run` has not started there yet{old}"
                )
            return CommandState.WAITING, ""
        late = self.started_at + timedelta(seconds=self.timeout_s) + SILENT
        if has_left or now > late:
            return CommandState.ENDED, f"node {self.node} left while the command ran"
        return CommandState.RUNNING, ""


class CommandBoard:
    """The commands of all jobs."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: frozenset[tuple[str, int]] = frozenset()
        self._refreshed_s = float("-inf")

    def request(
        self,
        job: Job,
        node: int,
        command: Sequence[str],
        timeout_s: float,
        action: AuditAction,
        *,
        terminal: NewTerminal | None = None,
    ) -> RequestedCommand:
        """Record a command for a node, and who asked for it. With a terminal, it is a shell.

        Raises:
            NotPossibleNow: the job has no such node now.
            TooManyRequests: the job has many commands already.
        """
        check_node(job, node)
        made_id = f"c{secrets.token_hex(8)}"
        now, mine = self._clock.now(), node_commands.c.job_id == job.id
        row = {
            "id": made_id,
            "job_id": job.id,
            "attempt": job.attempt,
            "node": node,
            "command": [*command],
            "timeout_s": timeout_s,
            "requested_by": action.actor.name,
            "requested_at": now,
            "detail": "",
            "stdout": b"",
            "stderr": b"",
            "terminal": terminal and terminal.type,
        }
        with writing(self._engine) as connection:
            _remove_old(connection, now - KEEP)
            count = select(func.count()).select_from(node_commands).where(mine)
            if connection.execute(count).scalar_one() >= MAX_OPEN:
                raise TooManyRequests(
                    f"job {job.id} has {MAX_OPEN} commands, which are kept for an hour; try again later",
                    retry_after_s=60,
                )
            connection.execute(insert(node_commands).values(**row))
            if terminal:
                _insert_terminal(connection, made_id, job.id, terminal, now)
            audit_log.append(connection, action, now)
            made = _find(connection, job.id, made_id)
        self._refreshed_s = float("-inf")
        return made

    def find(self, job_id: str, command_id: str) -> RequestedCommand:
        """A command of a job.

        Raises:
            NotFound: the job has none with this id, or none any more.
        """
        with reading(self._engine) as connection:
            return _find(connection, job_id, command_id)

    @property
    def is_stale(self) -> bool:
        """Whether `has_waiting` may not know the newest commands."""
        return time.monotonic() - self._refreshed_s > REFRESH_S

    def refresh(self) -> None:
        """Look up which nodes have waiting commands, once for all that ask at the same time."""
        with self._lock:
            if not self.is_stale:
                return
            fresh = node_commands.c.requested_at > self._clock.now() - START_WITHIN
            query = select(node_commands.c.job_id, node_commands.c.node).where(
                fresh, node_commands.c.started_at.is_(None)
            )
            with reading(self._engine) as connection:
                rows = connection.execute(query).all()
            self._waiting = frozenset((row.job_id, row.node) for row in rows)
            self._refreshed_s = time.monotonic()

    def has_waiting(self, job_id: str, node: int) -> bool:
        """Whether a node had a waiting command at the last `refresh`; without a query."""
        return (job_id, node) in self._waiting

    def next(
        self, job_id: str, node: int, attempt: int, *, terminals: bool = True
    ) -> RequestedCommand | None:
        """The oldest waiting command for a node of an attempt; None without any.

        Attempt 0 is the newest one. `terminals`: whether the node runs shells.
        """
        query = (
            select(node_commands)
            .where(
                *([] if terminals else [node_commands.c.terminal.is_(None)]),
                node_commands.c.job_id == job_id,
                node_commands.c.node == node,
                node_commands.c.started_at.is_(None),
                node_commands.c.requested_at > self._clock.now() - START_WITHIN,
            )
            .order_by(node_commands.c.requested_at, node_commands.c.id)
        )
        with reading(self._engine) as connection:
            for row in connection.execute(query).mappings():
                if attempt in {0, row["attempt"]}:
                    return _command(row)
        return None

    def start(self, job_id: str, command_id: str, runner: str) -> bool:
        """Whether `runner` may run a command; a repeated question has the same answer."""
        now = self._clock.now()
        which = (node_commands.c.id == command_id, node_commands.c.job_id == job_id)
        with writing(self._engine) as connection:
            job = event_log.read(connection, job_id)
            free = update(node_commands).where(
                *which,
                node_commands.c.started_at.is_(None),
                node_commands.c.attempt == job.attempt,
                node_commands.c.requested_at > now - START_WITHIN,
            )
            connection.execute(free.values(runner=runner, started_at=now))
            query = select(node_commands.c.runner).where(*which)
            found: bool = connection.execute(query).scalar() == runner
        return found

    def add_output(self, job_id: str, command_id: str, runner: str, output: CommandOutput) -> None:
        """Add output of a command, and its end.

        Raises:
            NotFound: this runner does not run it.
        """
        which = (
            node_commands.c.id == command_id,
            node_commands.c.job_id == job_id,
            node_commands.c.runner == runner,
        )
        with writing(self._engine) as connection:
            row = connection.execute(select(node_commands).where(*which)).mappings().first()
            if row is None:
                raise NotFound(f"no command {command_id} of job {job_id} runs on this node")
            if row["ended_at"] is not None:
                return
            values: dict[str, Any] = {
                "stdout": _extended(row["stdout"], output.stdout_at, output.stdout),
                "stderr": _extended(row["stderr"], output.stderr_at, output.stderr),
            }
            if output.exit_code is not None:
                ended = {"exit_code": output.exit_code, "detail": output.detail}
                values |= {**ended, "ended_at": self._clock.now()}
            connection.execute(update(node_commands).where(*which).values(**values))


def check_node(job: Job, node: int) -> None:
    """Check that a job has a node now.

    Raises:
        NotPossibleNow: it has not.
    """
    if job.state is State.ENDED or not job.placed:
        why = "it has ended" if job.state is State.ENDED else f"it is {job.status}"
        raise NotPossibleNow(f"job {job.id} has no nodes now: {why}")
    if node >= job.nodes:
        raise NotPossibleNow(
            f"job {job.id} has no node {node}: its nodes have the numbers 0 to {job.nodes - 1}"
            if job.nodes > 1
            else f"job {job.id} has no node {node}: it has one node, number 0"
        )
    if node in {*job.lost_nodes, *job.absent_nodes}:
        raise NotPossibleNow(f"node {node} of job {job.id} is not there now: {job.lost_nodes_text}")


def _extended(kept: bytes, at: int, more: bytes) -> bytes:
    """Output with more of it, up to the limit; unchanged by a repeated part."""
    return (kept + more)[:MAX_OUTPUT_STREAM_BYTES] if at == len(kept) else kept


def _remove_old(connection: Connection, before: datetime) -> None:
    used = select(node_terminals.c.command_id).where(node_terminals.c.seen_at >= before)
    connection.execute(
        delete(node_commands).where(
            node_commands.c.requested_at < before, node_commands.c.id.not_in(used)
        )
    )
    connection.execute(delete(node_terminals).where(node_terminals.c.seen_at < before))


def _insert_terminal(
    connection: Connection, shell_id: str, job_id: str, terminal: NewTerminal, now: datetime
) -> None:
    row = {
        "command_id": shell_id,
        "job_id": job_id,
        "columns": terminal.columns,
        "rows": terminal.rows,
        "input": b"",
        "input_end": 0,
        "output": b"",
        "output_end": 0,
        "seen_at": now,
        "closed": False,
    }
    connection.execute(insert(node_terminals).values(**row))


def _find(connection: Connection, job_id: str, command_id: str) -> RequestedCommand:
    query = select(node_commands).where(
        node_commands.c.id == command_id, node_commands.c.job_id == job_id
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"job {job_id} has no command {command_id}; commands are kept for an hour")
    return _command(row)


def _command(row: RowMapping) -> RequestedCommand:
    names = RequestedCommand.__dataclass_fields__
    return RequestedCommand(**{name: row[name] for name in names})
