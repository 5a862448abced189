"""Where the nodes of several groups meet: each asks for the leader, node 0.

The groups of a job are started and replaced independently of each other, so that none of their nodes knows the addresses of another
group. The leader registers its addresses; every other node asks for them, and learns how many earlier incarnations of it have done
so: the leader accepts only the newest one. Nodes that have met need no service until a node is new, or has lost its leader.

Rows belong to a launch of the job, so that a leader of an earlier launch is never handed out. A repeated request changes nothing.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivingNode:
    """A node that looks for the others of its job."""

    node: int
    group: str
    incarnation: str
    addresses: Sequence[str] = ()
    """Those of a leader; the others need none."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a node meets the others."""

    leader: ArrivingNode | None
    """None: no leader of this launch has registered yet."""
    start: int
    """Number of earlier incarnations of the node to which this leader was handed out."""


class Rendezvous:
    """The leaders of jobs, and the nodes that asked for them."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def meet(self, job_id: str, arriving: ArrivingNode) -> Meeting:
        """Register a leader, or find the one that a node has to meet.

        Raises:
            NotFound: the job does not exist.
            Fenced: the job is stopping, paused or has ended, or the leader is of an earlier launch.
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
        launch = event_log.read(connection, job_id).launch
        mine = rendezvous.c.job_id == job_id
        leader = None if arriving.node == LEADER else _newest_leader(connection, job_id, launch)
        start = 0
        if leader:
            earlier = select(func.count()).where(
                mine, rendezvous.c.leader == leader.incarnation, rendezvous.c.node == arriving.node
            )
            start = connection.execute(earlier).scalar_one()
        newest = connection.execute(select(func.max(rendezvous.c.n)).where(mine)).scalar() or 0
        row = {
            "job_id": job_id,
            "n": newest + 1,
            "launch": launch,
            "node": arriving.node,
            "node_group": arriving.group,
            "incarnation": arriving.incarnation,
            "leader": leader.incarnation if leader else None,
            "start": start,
            "addresses": [*arriving.addresses],
            "port": arriving.port,
            "asked_at": self._clock.now(),
        }
        connection.execute(insert(rendezvous).values(**row))
        return Meeting(leader or arriving, start)


def _find(connection: Connection, job_id: str, arriving: ArrivingNode) -> Meeting | None:
    """The response to a request that needs no new row; None if it needs one."""
    job = event_log.read(connection, job_id)
    if job.state in {State.ENDED, State.PAUSED} or job.state in LEAVING:
        raise Fenced(f"job {job_id} is {job.state}, so no worker may start; stop")
    leader = _newest_leader(connection, job_id, job.launch)
    asked = select(rendezvous.c.launch, rendezvous.c.start).where(
        rendezvous.c.job_id == job_id,
        rendezvous.c.node == arriving.node,
        rendezvous.c.incarnation == arriving.incarnation,
    )
    if arriving.node == LEADER:
        own = connection.execute(asked).first()
        if own and own.launch != job.launch:
            raise Fenced(f"a newer launch of job {job_id} has begun; stop without saving")
        return Meeting(leader, 0) if own else None
    if leader is None:
        return Meeting(None, 0)
    own = connection.execute(asked.where(rendezvous.c.leader == leader.incarnation)).first()
    return Meeting(leader, own.start) if own else None


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
