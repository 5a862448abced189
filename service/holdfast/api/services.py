"""What routes are given to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request
from sqlalchemy import Engine as SqlEngine

from holdfast.confinement import Confinement
from holdfast.domain.deeds import Head
from holdfast.domain.job import Job
from holdfast.domain.spec import Engine
from holdfast.instruments import Instruments
from holdfast.intake import Intake
from holdfast.ports import Clock, Launcher, Messenger, PriceCatalog
from holdfast.pulse import Health
from holdfast.store.audit import Audit
from holdfast.store.channels import Channels
from holdfast.store.costs import CostBook
from holdfast.store.digests import Digests
from holdfast.store.journal import Journal
from holdfast.store.keyring import Keyring
from holdfast.store.launches import LaunchBook
from holdfast.store.ledgers import Ledgers
from holdfast.store.losses import LossBook
from holdfast.store.musters import Musters
from holdfast.store.outbox import Outbox
from holdfast.store.people import People
from holdfast.store.reading import Reading
from holdfast.store.removals import Removals
from holdfast.store.secrets import Secrets
from holdfast.store.series import Series
from holdfast.store.sessions import Sessions
from holdfast.store.tokens import Tokens
from holdfast.store.tolls import TollBook
from holdfast.store.upkeep import Upkeep
from holdfast.store.watches import Watches
from holdfast.traffic import Traffic
from holdfast.uploads import Uploads

T = TypeVar("T")


class Ask(Protocol):
    """Asks a launcher, in the event loop to which its connections belong; the answer is awaited in any other."""

    def __call__(self, question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """What `question` returns or raises."""
        ...


def ask_here(question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
    """The answer, where there is but one loop."""
    return question


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a running service, put together by `holdfast.serving` or by a test."""

    engine: SqlEngine
    journal: Journal
    reading: Reading
    watches: Watches
    tokens: Tokens
    secrets: Secrets
    channels: Channels
    messenger: Messenger
    launchers: Mapping[Engine, Launcher]
    launches: LaunchBook
    prices: PriceCatalog
    clock: Clock
    confinement: Confinement = field(default_factory=Confinement)
    """What jobs of users may use of the service's machine."""
    uploads: Uploads | None = None
    """Code that clients uploaded; None: the service takes none."""
    billing_rules: bool = True
    """Whether bills follow the rules of providers."""
    health: Callable[[], Sequence[Health]] = tuple
    """What is known of the engines behind launchers, without asking them."""
    worker_url: str = ""
    """The address at which workers are told to report."""
    nudge: Callable[[], None] = lambda: None
    """Wakes the reconciler; it would come by itself, only later."""
    ask: Ask = ask_here
    """Asks launchers where they live."""
    is_reconciling: Callable[[], bool] = lambda: True
    """Whether the reconciler of this process runs."""
    stopping: Event = field(default_factory=Event)
    """Set when the service is about to stop, so that streams end."""

    traffic: Traffic = field(default_factory=lambda: Traffic(time.monotonic))
    """How many requests may come, and how many live streams may be open."""
    disk_trouble: Callable[[], str | None] = lambda: None
    """Why the service could not write what it has to record, in words; None: there is room."""
    trust_loopback: bool | None = None
    """Whether who comes from this machine without a token is its owner; None: until there are users."""
    instruments: Instruments = field(default_factory=Instruments)
    """What this process measures of itself."""
    kept_head: Callable[[], Head] = Head
    """The newest row of the audit log that was seen, as it is kept outside of the database."""
    demo_seed: int | None = None
    """What the world of a demonstration was made from; None: this service is real."""

    @cached_property
    def intake(self) -> Intake:
        """Where reports of workers are handed in."""
        return Intake(self.journal, self.instruments)

    @cached_property
    def ledgers(self) -> Ledgers:
        """What jobs have cost, in rows."""
        return Ledgers(self.engine, with_rules=self.billing_rules)

    @cached_property
    def digests(self) -> Digests:
        """What lists show of jobs."""
        return Digests(self.reading, with_rules=self.billing_rules)

    @property
    def costs(self) -> CostBook:
        """Sums over these rows."""
        return CostBook(self.engine, self.ledgers)

    @property
    def series(self) -> Series:
        """Curves of what jobs measured."""
        return Series(self.engine)

    @property
    def losses(self) -> LossBook:
        """What became of nodes, over the same rows."""
        return LossBook(self.ledgers)

    @property
    def tolls(self) -> TollBook:
        """What the market has taken, by warning and by job, over the same rows."""
        return TollBook(self.ledgers)

    def trusts_loopback(self) -> bool:
        """Whether who comes from this machine without a token is its owner."""
        if self.trust_loopback is None:
            return not self.people.any_yet()
        return self.trust_loopback

    @property
    def keyring(self) -> Keyring:
        """The access tokens of people."""
        return self.tokens.keyring

    @property
    def people(self) -> People:
        """Users, projects, and who is what in which."""
        return People(self.engine, self.clock)

    @property
    def sessions(self) -> Sessions:
        """The sessions of browsers."""
        return Sessions(self.engine)

    @property
    def audit(self) -> Audit:
        """What people did."""
        return Audit(self.engine, self.clock)

    @property
    def musters(self) -> Musters:
        """Which worker speaks for a job."""
        return Musters(self.engine, self.clock)

    @property
    def outbox(self) -> Outbox:
        """What people are told of jobs, and were."""
        return Outbox(self.engine, self.clock)

    @property
    def removals(self) -> Removals:
        """Jobs that were removed."""
        return Removals(self.engine, self.clock)

    @property
    def upkeep(self) -> Upkeep:
        """Which checkpoint stores are tidied, and how that goes."""
        return Upkeep(self.engine)


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


The = Annotated[Services, Depends(_services)]


def _job(job_id: str, services: The) -> Job:
    return services.journal.read(job_id)


TheJob = Annotated[Job, Depends(_job)]
"""The job of the path; a request for one that does not exist is answered with 404 before the route runs."""
