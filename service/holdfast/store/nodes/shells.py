"""The input and output of shells on nodes, on their way through the database.

Both are streams of bytes. A row holds what the receiver has not confirmed; offsets count from the start of the shell. Writers of this
database wait for each other, so that a row does not change between its read and its update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast_worker.protocol.node_shells import (
    MAX_SHELL_INPUT_BYTES,
    MAX_SHELL_OUTPUT_BYTES,
    ShellInput,
)
from sqlalchemy import Connection, Engine, RowMapping, func, select, update

from holdfast.errors import NotFound
from holdfast.ports import Clock
from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import node_commands, node_terminals

SEEN_WITHIN: Final = timedelta(seconds=5)
"""Precision of the last request of a client. A lower value adds a write to each request; a higher value ends shells that are in use."""


@dataclass(frozen=True, slots=True)
class ShellPosition:
    """How far a shell is, without its data."""

    input_end: int
    output_end: int
    waiting_bytes: int
    """Output that its client has not confirmed."""
    columns: int
    rows: int
    closed: bool
    ended_at: datetime | None

    @property
    def is_over(self) -> bool:
        """Whether its node has nothing to wait for."""
        return self.closed or self.ended_at is not None

    @property
    def has_room(self) -> bool:
        """Whether its node may send output, or need not any more."""
        return self.waiting_bytes < MAX_SHELL_OUTPUT_BYTES or self.is_over


@dataclass(frozen=True, slots=True)
class TerminalChange:
    """What a user does at a terminal: keys, another size, or its end."""

    at: int
    data: bytes
    size: tuple[int, int] | None = None
    """Columns and rows; None: unchanged."""
    closed: bool = False


class ShellStreams:
    """The input and output of all shells."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def position(self, job_id: str, shell_id: str, runner: str | None = None) -> ShellPosition:
        """How far a shell is; that of a runner, if there is one.

        Raises:
            NotFound: there is no such shell, or not any more.
        """
        names = ("input_end", "output_end", "columns", "rows", "closed")
        waiting = func.length(node_terminals.c.output).label("waiting_bytes")
        query = select(
            *(node_terminals.c[name] for name in names), waiting, node_commands.c.ended_at
        )
        with reading(self._engine) as connection:
            row = _row(connection, query, job_id, shell_id, runner)
        return ShellPosition(**row)

    def write(self, job_id: str, shell_id: str, change: TerminalChange) -> int:
        """Add input of a user, and return the bytes of input that are taken of all.

        What is not taken is to be sent again.

        Raises:
            NotFound: there is no such shell, or not any more.
        """
        with writing(self._engine) as connection:
            row = self._full(connection, job_id, shell_id)
            kept, end = _appended(
                row["input"], row["input_end"], change.at, change.data, MAX_SHELL_INPUT_BYTES
            )
            values = {"input": kept, "input_end": end, "closed": row["closed"] or change.closed}
            if change.size:
                values |= {"columns": change.size[0], "rows": change.size[1]}
            self._update(connection, row, self._seen(row, values))
        return end

    def read(self, job_id: str, shell_id: str, start: int) -> tuple[int, bytes]:
        """The output from `start` on, and where it begins; earlier output is dropped.

        Raises:
            NotFound: there is no such shell, or not any more.
        """
        with reading(self._engine) as connection:
            row = self._full(connection, job_id, shell_id)
        kept = _after(row["output"], row["output_end"], start)
        if kept != row["output"] or self._seen(row, {}):
            with writing(self._engine) as connection:
                row = self._full(connection, job_id, shell_id)
                kept = _after(row["output"], row["output_end"], start)
                self._update(connection, row, self._seen(row, {"output": kept}))
        return row["output_end"] - len(kept), kept

    def take_input(self, job_id: str, shell_id: str, runner: str, start: int) -> ShellInput:
        """The input from `start` on, for a node; earlier input is dropped.

        Raises:
            NotFound: this runner has no such shell, or not any more.
        """
        with reading(self._engine) as connection:
            row = self._full(connection, job_id, shell_id, runner)
        kept = _after(row["input"], row["input_end"], start)
        if kept != row["input"]:
            with writing(self._engine) as connection:
                row = self._full(connection, job_id, shell_id, runner)
                kept = _after(row["input"], row["input_end"], start)
                self._update(connection, row, {"input": kept})
        return ShellInput(
            data=kept,
            columns=row["columns"],
            rows=row["rows"],
            closed=row["closed"] or row["ended_at"] is not None,
            silent_s=max(0.0, (self._clock.now() - row["seen_at"]).total_seconds()),
        )

    def add_output(self, job_id: str, shell_id: str, runner: str, at: int, data: bytes) -> int:
        """Add output of a node, and return the bytes of output that are taken of all.

        Raises:
            NotFound: this runner has no such shell, or not any more.
        """
        with reading(self._engine) as connection:
            row = self._full(connection, job_id, shell_id, runner)
        if len(row["output"]) >= MAX_SHELL_OUTPUT_BYTES:
            return int(row["output_end"])
        with writing(self._engine) as connection:
            row = self._full(connection, job_id, shell_id, runner)
            kept, end = _appended(
                row["output"], row["output_end"], at, data, MAX_SHELL_OUTPUT_BYTES
            )
            self._update(connection, row, {"output": kept, "output_end": end})
        return end

    def _full(
        self, connection: Connection, job_id: str, shell_id: str, runner: str | None = None
    ) -> RowMapping:
        query = select(node_terminals, node_commands.c.ended_at)
        return _row(connection, query, job_id, shell_id, runner)

    def _seen(self, row: RowMapping, values: dict[str, Any]) -> dict[str, Any]:
        """Values of an update, with the time of this request of the client where it matters."""
        now = self._clock.now()
        return {**values, "seen_at": now} if now - row["seen_at"] > SEEN_WITHIN else values

    def _update(self, connection: Connection, row: RowMapping, values: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in values.items() if row[name] != value}
        if changed:
            which = node_terminals.c.command_id == row["command_id"]
            connection.execute(update(node_terminals).where(which).values(**changed))


def _row(
    connection: Connection, query: Any, job_id: str, shell_id: str, runner: str | None
) -> RowMapping:
    joined = query.join_from(
        node_terminals, node_commands, node_commands.c.id == node_terminals.c.command_id
    ).where(node_terminals.c.command_id == shell_id, node_terminals.c.job_id == job_id)
    if runner is not None:
        joined = joined.where(node_commands.c.runner == runner)
    row = connection.execute(joined).mappings().first()
    if row is None:
        raise NotFound(
            f"job {job_id} has no shell {shell_id}; shells are kept for an hour after their last use"
            if runner is None
            else f"no shell {shell_id} of job {job_id} runs on this node"
        )
    return row


def _appended(kept: bytes, end: int, at: int, data: bytes, limit: int) -> tuple[bytes, int]:
    """A stream with more data as far as there is room, and its new end.

    Nothing is added before its turn, or twice.
    """
    fresh = data[end - at :] if at <= end else b""
    taken = fresh[: max(0, limit - len(kept))]
    return kept + taken, end + len(taken)


def _after(kept: bytes, end: int, start: int) -> bytes:
    """What is kept of a stream from `start` on."""
    return kept[max(0, start - (end - len(kept))) :]
