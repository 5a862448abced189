"""All kinds of callers of the API: users in every role, tokens in every state, workers, strangers."""

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

STAGE = Actor(name="stage")
FAR = "192.0.2.7"
OWN, FOREIGN = "own", "foreign"
MANY = 1_000_000
PATIENT = RateLimits(ask=MANY, spend=MANY, report=MANY, fail=MANY, guess=MANY, note=MANY)
"""Limits that no test comes near."""
LASTS = timedelta(days=30)


@dataclass
class Principals:
    """A service with two projects, a job in each, and people."""

    world: SimulatedService
    own: str
    """The job of the project `own`, in which people have their roles."""
    foreign: str
    """The job of the project `foreign`, which has no members."""

    def job(self, project: str) -> str:
        """The job of a project."""
        return {OWN: self.own, FOREIGN: self.foreign}[project]

    def token(
        self,
        user: str | None,
        *,
        scopes: Collection[TokenScope] = tuple(TokenScope),
        project: str | None = None,
        lasts: timedelta = LASTS,
    ) -> tuple[str, Token]:
        """A new token of a user."""
        wish = NewToken(name="test", user=user, scopes=scopes, project=project, lifetime=lasts)
        return self.world.services.access_tokens.create(wish, self.world.clock.now())

    def with_token(self, text: str) -> TestClient:
        """A caller from another machine with a token."""
        return client(self.world.app, FAR, Authorization=f"Bearer {text}")

    def person(self, user: str | None, **wish: object) -> TestClient:
        """A person from another machine."""
        return self.with_token(self.token(user, **wish)[0])  # type: ignore[arg-type]

    def worker(self, project: str) -> TestClient:
        """A worker of the job of a project."""
        return self.with_token(self.world.services.tokens.for_worker(self.job(project)))


def create_principals(world: SimulatedService) -> Principals:
    """The cast over an empty world: boss may do everything, outsider is in no project, guest is there to be changed."""
    traffic = RateLimiter(time.monotonic, PATIENT)
    world.services = replace(world.services, rate_limiter=traffic, trust_loopback=True)
    world.app.state.services = world.services
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
        world.until(job_id, "training")  # Then there is something to be taken away.
    return Principals(world, **jobs)
