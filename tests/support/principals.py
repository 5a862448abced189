"""Callers of the API: users in every role, tokens in every state, workers, unknown callers."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta

from fastapi.testclient import TestClient
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Role, TokenScope
from holdfast.rate_limit import RateLimiter, RateLimits
from holdfast.store.identity.access_tokens import NewToken, Token
from support.simulated_service import JOB_FILE, SimulatedService, client
from support.snapshots import created_once

STAGE = Actor(name="stage")
FAR = "192.0.2.7"
OWN, FOREIGN = "own", "foreign"
MANY = 1_000_000
PATIENT = RateLimits(ask=MANY, spend=MANY, report=MANY, fail=MANY, guess=MANY, note=MANY)
"""Limits that no test reaches."""
LASTS = timedelta(days=30)


@dataclass
class Principals:
    """A service with two projects, one job in each, and users."""

    world: SimulatedService
    own: str
    """The job of the project `own`, in which users have their roles."""
    foreign: str
    """The job of the project `foreign`, which has no members."""

    def job(self, project: str) -> str:
        """Return the job id of a project."""
        return {OWN: self.own, FOREIGN: self.foreign}[project]

    def token(
        self,
        user: str | None,
        *,
        scopes: Collection[TokenScope] = tuple(TokenScope),
        project: str | None = None,
        lasts: timedelta = LASTS,
    ) -> tuple[str, Token]:
        """Create a token of a user."""
        wish = NewToken(name="test", user=user, scopes=scopes, project=project, lifetime=lasts)
        return self.world.services.access_tokens.create(wish, self.world.clock.now())

    def with_token(self, text: str) -> TestClient:
        """Return a client on another machine that uses this token."""
        return client(self.world.app, FAR, Authorization=f"Bearer {text}")

    def person(self, user: str | None, **wish: object) -> TestClient:
        """Return a client on another machine for a user."""
        return self.with_token(self.token(user, **wish)[0])  # type: ignore[arg-type]

    def worker(self, project: str) -> TestClient:
        """Return a client that is a worker of the project's job."""
        return self.with_token(self.world.services.tokens.for_worker(self.job(project)))


def create_principals(world: SimulatedService) -> Principals:
    """Add users to an empty service.

    `boss` is an administrator, `outsider` belongs to no project, and tests may change `guest`.
    """
    traffic = RateLimiter(time.monotonic, PATIENT)
    world.services = replace(world.services, rate_limiter=traffic, trust_loopback=True)
    world.app.state.services = world.services
    return Principals(world, **created_once(world, _add_users_and_jobs))


def _add_users_and_jobs(world: SimulatedService) -> dict[str, str]:
    """Add users, projects and a job in each, and return the ids of the jobs."""
    people = world.services.users
    for name in (OWN, FOREIGN):
        people.add_project(name, STAGE)
    for name in ("boss", "lead", "member", "viewer", "outsider", "guest"):
        people.add_user(name, is_admin=name == "boss", actor=STAGE)
    for name, role in (("lead", Role.ADMIN), ("member", Role.MEMBER), ("viewer", Role.VIEWER)):
        people.set_member(OWN, name, role, STAGE)
    jobs = {
        project: world.submit(JOB_FILE.replace("tiny", f"job-of-{project}"), project=project)["id"]
        for project in (OWN, FOREIGN)
    }
    for job_id in jobs.values():
        world.until(job_id, "training")  # Tests can then preempt a node.
    return jobs
