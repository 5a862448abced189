"""Generator of the history: API calls of users and steps of the reconciler on a set clock.

Nothing observable happens between two times, so a month takes seconds. The service itself records everything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

import httpx2
import yaml
from fastapi import FastAPI

from holdfast.clock import ScriptedClock
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.demo.history import users
from holdfast.demo.history.jobs import DemoJob, UserAction
from holdfast.demo.history.launcher import DemoLauncher
from holdfast.demo.history.sweeps import DemoSweep
from holdfast.store.leases import LeaseTable

POLL_INTERVALS: Final = PollIntervals(
    poll_every_s=4 * 3600.0, lease_s=60.0, poll_paused_every_s=24 * 3600.0
)
"""Polling intervals of jobs without known changes. A lower value slows down the generation."""
POLL_DELAY: Final = timedelta(seconds=6)
"""Delay of the reconciler after a change, as if it polled every ten seconds or so."""
COMPARE_EVERY: Final = timedelta(minutes=20)
COMPARISONS: Final = 40
"""Times at which the jobs of a sweep are compared after its submission. More slow down the generation; fewer stop jobs later."""
Step: TypeAlias = Callable[[], Awaitable[Any]]
"""A user's action."""
CONFLICT: Final = 409
"""Status of an action that is not possible now, which real users also meet."""


@dataclass
class HistoryGenerator:
    """The participants of the history, until the present is reached."""

    app: FastAPI
    reconciler: Reconciler
    leases: LeaseTable
    launcher: DemoLauncher
    clock: ScriptedClock
    jobs: list[DemoJob]
    sweeps: list[DemoSweep]
    stop_early: Callable[[], int]
    """Applies the stop rules of sweeps."""
    start: datetime
    ids: dict[str, str] = field(default_factory=dict)
    """Job ids by name."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens by user name."""
    _trials: dict[str, list[str]] = field(default_factory=dict)
    """Job ids of sweeps by name."""
    _due_at: dict[str, datetime] = field(default_factory=dict)
    """Times at which simulated changes of jobs are observed."""

    async def run_until(self, end: datetime) -> None:
        """Generate the history before `end` and set the clock to it."""
        transport = httpx2.ASGITransport(self.app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await self._create_users(http)
            script = deque(sorted(self._script(http), key=itemgetter(0)))
            while (now := self._next(script, end)) is not None:
                self.clock.move_to(now)
                while script and script[0][0] <= now:
                    await script.popleft()[1]()
                await self._reconcile(now)
        self.clock.move_to(end)
        for job_id in self.leases.list_jobs():
            self._due_at[job_id] = end
        await self._reconcile(end)

    def _script(self, http: httpx2.AsyncClient) -> Iterator[tuple[datetime, Step]]:
        """Yield all user actions with their times."""
        for hours, path, budget in users.BUDGETS:
            yield (
                self._at(hours),
                partial(self._request, http, "PUT", f"/v1/budgets/{path}", budget),
            )
        for hours, path, quota in users.QUOTAS:
            yield (
                self._at(hours),
                partial(self._request, http, "PUT", f"/v1/quotas/{path}", quota),
            )
        for sweep in self.sweeps:
            yield self._at(sweep.base.start_h), partial(self._submit_sweep, http, sweep)
            for number in range(1, COMPARISONS + 1):
                at = self._at(sweep.base.start_h) + number * COMPARE_EVERY
                yield at, partial(self._compare_jobs, sweep.base.name)
        for part in self.jobs:
            yield self._at(part.start_h), partial(self._submit, http, part)
            for deed in part.actions:
                yield (
                    self._at(part.start_h + deed.after_h),
                    partial(self._perform, http, part, deed),
                )

    def _at(self, hours: float) -> datetime:
        return self.start + timedelta(hours=hours)

    def _next(self, script: deque[tuple[datetime, Step]], end: datetime) -> datetime | None:
        """Return the time of the next action; None if there is none before the end."""
        moments = [*self._due_at.values()]
        if script:
            moments.append(script[0][0])
        if due := self.leases.next_due():
            moments.append(due)
        soonest = max(min(moments, default=end), self.clock.now())
        return soonest if soonest < end else None

    async def _reconcile(self, now: datetime) -> None:
        """Reconcile all jobs that are due or have changed."""
        for job_id in [job_id for job_id, at in self._due_at.items() if at <= now]:
            self.leases.make_due(job_id, now)
        leases = self.reconciler.claim()
        await asyncio.gather(*map(self.reconciler.process, leases))
        for lease in leases:
            self._due_at.pop(lease.job_id, None)
        for job_id, at in self.launcher.changes_next().items():
            self._due_at.setdefault(job_id, at + POLL_DELAY)

    async def _create_users(self, http: httpx2.AsyncClient) -> None:
        """Create users, projects and budgets as the owner of the service."""
        for name in users.USERS:
            await self._request(
                http, "POST", "/v1/users", {"name": name, "is_admin": name == users.ADMIN}
            )
            made = await self._request(
                http, "POST", "/v1/tokens", {"name": "laptop", "user": name, "days": 90}
            )
            self.tokens[name] = made["token"]
        for project, members in users.MEMBERS.items():
            await self._request(http, "POST", "/v1/projects", {"name": project})
            for name, role in members.items():
                await self._request(
                    http, "PUT", f"/v1/projects/{project}/members/{name}", {"role": role}
                )

    async def _submit(self, http: httpx2.AsyncClient, part: DemoJob) -> None:
        body = {"task": yaml.safe_dump(part.task, sort_keys=False), "project": part.project}
        job = await self._request(http, "POST", "/v1/jobs", body, part.owner)
        self.ids[part.name] = job["id"]
        self.launcher.expect(job["id"], part)

    async def _submit_sweep(self, http: httpx2.AsyncClient, sweep: DemoSweep) -> None:
        made = await self._request(http, "POST", "/v1/sweeps", sweep.request, sweep.base.owner)
        self._trials[sweep.base.name] = [trial["job_id"] for trial in made["trials"]]
        for trial in made["trials"]:
            self.launcher.expect(trial["job_id"], sweep.trial(trial["number"], trial["params"]))

    async def _compare_jobs(self, name: str) -> None:
        """Apply the stop rules to what is read so far, and read more of a sweep."""
        self.stop_early()
        for job_id in {*self._trials[name]}.intersection(self.leases.list_jobs()):
            self._due_at[job_id] = self.clock.now()

    async def _perform(self, http: httpx2.AsyncClient, part: DemoJob, deed: UserAction) -> None:
        job_id = self.ids[part.name]
        if deed.command == "forget":
            self.launcher.forget(f"{job_id}-1")
        else:
            await self._request(
                http, "POST", f"/v1/jobs/{job_id}/{deed.command}", deed.body, part.owner
            )
        self._due_at[job_id] = self.clock.now() + POLL_DELAY

    async def _request(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        body: Mapping[str, Any],
        user: str | None = None,
    ) -> Any:
        """Send a request as a user, or as the local owner if None, and return the response."""
        headers = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
        answer = await http.request(method, path, json=dict(body), headers=headers)
        fits = answer.is_success or answer.status_code == CONFLICT
        assert fits, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()
