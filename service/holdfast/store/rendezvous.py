"""Where the nodes of several groups meet: each asks for the leader, node 0.

The groups of a job are started and replaced independently of each other, so that none of their nodes knows the addresses of another
group. The leader registers its addresses; every other node asks for them, and learns how often the node was sent to this leader
before: the leader accepts only the newest start of each node. Nodes that have met need no service until a node is new, or has lost its
leader.

The newest incarnation of a node takes its place for good: an earlier one, which may still run behind a broken network, is fenced. Rows
belong to a launch of the job, so that a leader of an earlier launch is never handed out. A repeated request changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select

from holdfast.domain.jobs.job import LEAVING, State
from holdfast.errors import Fenced
from holdfast.ports import Clock
from holdfast.store import event_log
from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import rendezvous

LEADER: Final = 0
"""The node that all others meet."""


_SUPERSEDED: Final = "another machine has taken the place of this node; stop without saving"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivingNode:
    """A node that looks for the others of its job."""

    node: int
    group: str
    incarnation: str
    joined: int = 0
    """Number of leaders that this incarnation has joined before."""
    addresses: Sequence[str] = ()
    """Those of a leader; the others need none."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a node meets the others."""

    leader: ArrivingNode | None
    """None: no leader of this launch has registered yet."""
    start: int
    """How often the node was sent to this leader before."""


class Rendezvous:
    """The leaders of jobs, and the nodes that asked for them."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def meet(self, job_id: str, arriving: ArrivingNode) -> Meeting:
        """Register a leader, or find the one that a node has to meet.

        Raises:
            NotFound: the job does not exist.
            Fenced: the job is stopping, paused or has ended, or another incarnation or launch has replaced the node.
        """
        with reading(self._engine) as connection:
            found = _find(connection, job_id, arriving)
        if found is None:
            with writing(self._engine) as connection:
                found = _find(connection, job_id, arriving) or self._record(
                    connection, job_id, arriving
                )
        return found

    def _record(self, connection: Connection, job_id: str, arriving: ArrivingNode) -> Meeting:
        mine = rendezvous.c.job_id == job_id
        launch = event_log.read(connection, job_id).launch
        leader = None if arriving.node == LEADER else _newest_leader(connection, job_id, launch)
        name = leader.incarnation if leader else None
        sent = select(func.count()).where(
            mine, rendezvous.c.leader == name, rendezvous.c.node == arriving.node
        )
        start: int = connection.execute(sent).scalar_one() if leader else 0
        newest = connection.execute(select(func.max(rendezvous.c.n)).where(mine)).scalar() or 0
        row = {
            "job_id": job_id,
            "n": newest + 1,
            "launch": launch,
            "node": arriving.node,
            "node_group": arriving.group,
            "incarnation": arriving.incarnation,
            "joined": arriving.joined,
            "leader": name,
            "start": start,
            "addresses": [*arriving.addresses],
            "port": arriving.port,
            "asked_at": self._clock.now(),
        }
        connection.execute(insert(rendezvous).values(**row))
        return Meeting(arriving if arriving.node == LEADER else leader, start)


def _find(connection: Connection, job_id: str, arriving: ArrivingNode) -> Meeting | None:
    """The response to a request that needs no new row; None if it needs one."""
    job = event_log.read(connection, job_id)
    if job.state in {State.ENDED, State.PAUSED} or job.state in LEAVING:
        raise Fenced(f"job {job_id} is {job.state}, so no worker may start; stop")
    rows = select(rendezvous).where(
        rendezvous.c.job_id == job_id, rendezvous.c.node == arriving.node
    )
    newest: Any = connection.execute(rows.order_by(rendezvous.c.n.desc()).limit(1)).first()
    own = rows.where(rendezvous.c.incarnation == arriving.incarnation)
    if newest is None or newest.incarnation != arriving.incarnation:
        if connection.execute(own.limit(1)).first():
            raise Fenced(_SUPERSEDED)
        return None
    if newest.launch != job.launch:
        raise Fenced(f"a newer launch of job {job_id} has begun; stop without saving")
    leader = _newest_leader(connection, job_id, job.launch)
    if arriving.node == LEADER or leader is None:
        return Meeting(leader, 0)
    sent = own.where(
        rendezvous.c.leader == leader.incarnation, rendezvous.c.joined == arriving.joined
    )
    row: Any = connection.execute(sent).first()
    return Meeting(leader, row.start) if row else None


def _newest_leader(connection: Connection, job_id: str, launch: int) -> ArrivingNode | None:
    """The leader of a launch that was the last one to register; None without one."""
    leaders = select(rendezvous).where(
        rendezvous.c.job_id == job_id,
        rendezvous.c.launch == launch,
        rendezvous.c.node == LEADER,
    )
    row: Any = connection.execute(leaders.order_by(rendezvous.c.n.desc()).limit(1)).first()
    if row is None:
        return None
    return ArrivingNode(
        node=LEADER,
        group=row.node_group,
        incarnation=row.incarnation,
        addresses=row.addresses,
        port=row.port,
    )
