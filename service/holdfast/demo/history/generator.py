"""How the history comes about: people act through the API, and the reconciler looks, at moments that a clock is moved to.

Between two moments nothing happens that anybody could see, so that a month takes seconds. All that is recorded is recorded by the
service itself.
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
from holdfast.store.leases import LeaseTable

PACE: Final = PollIntervals(look_every_s=4 * 3600.0, lease_s=60.0, paused_look_s=24 * 3600.0)
"""How often jobs are looked at of which nothing is known to have changed. Smaller: the history takes longer to make."""
LATE: Final = timedelta(seconds=6)
"""How long after something has happened the reconciler looks, as one does that asks every ten seconds or so."""
Act: TypeAlias = Callable[[], Awaitable[Any]]
"""Something that somebody does."""
TRIED_IN_VAIN: Final = 409
"""What is answered to whoever asks for what is not possible now: people do that."""


@dataclass
class HistoryGenerator:
    """Everything that takes part, until the present is reached."""

    app: FastAPI
    reconciler: Reconciler
    watches: LeaseTable
    sky: DemoLauncher
    clock: ScriptedClock
    parts: list[DemoJob]
    start: datetime
    ids: dict[str, str] = field(default_factory=dict)
    """Of jobs, by their names."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Of people, by theirs."""
    _looks: dict[str, datetime] = field(default_factory=dict)
    """When to look at jobs in which something will have happened by then."""

    async def until(self, end: datetime) -> None:
        """All that happens before `end`, at which the clock stands then."""
        transport = httpx2.ASGITransport(self.app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await self._gather(http)
            script = deque(sorted(self._script(http), key=itemgetter(0)))
            while (now := self._next(script, end)) is not None:
                self.clock.move_to(now)
                while script and script[0][0] <= now:
                    await script.popleft()[1]()
                await self._look(now)
        self.clock.move_to(end)
        for job_id in self.watches.all():
            self._looks[job_id] = end
        await self._look(end)

    def _script(self, http: httpx2.AsyncClient) -> Iterator[tuple[datetime, Act]]:
        """All that people do, and when."""
        for hours, path, budget in users.BUDGETS:
            yield self._at(hours), partial(self._ask, http, "PUT", f"/v1/budgets/{path}", budget)
        for part in self.parts:
            yield self._at(part.begin_h), partial(self._submit, http, part)
            for deed in part.deeds:
                yield self._at(part.begin_h + deed.after_h), partial(self._do, http, part, deed)

    def _at(self, hours: float) -> datetime:
        return self.start + timedelta(hours=hours)

    def _next(self, script: deque[tuple[datetime, Act]], end: datetime) -> datetime | None:
        """When something is to be done next; None: not before the end."""
        moments = [*self._looks.values()]
        if script:
            moments.append(script[0][0])
        if due := self.watches.next_due():
            moments.append(due)
        soonest = max(min(moments, default=end), self.clock.now())
        return soonest if soonest < end else None

    async def _look(self, now: datetime) -> None:
        """A sweep over all jobs that are due, or in which something has happened."""
        for job_id in [job_id for job_id, at in self._looks.items() if at <= now]:
            self.watches.nudge(job_id, now)
        leases = self.reconciler.claim()
        await asyncio.gather(*map(self.reconciler.process, leases))
        for lease in leases:
            self._looks.pop(lease.job_id, None)
        for job_id, at in self.sky.changes_next().items():
            self._looks.setdefault(job_id, at + LATE)

    async def _gather(self, http: httpx2.AsyncClient) -> None:
        """People, projects and budgets, as the owner of the service makes them."""
        for name in users.USERS:
            await self._ask(
                http, "POST", "/v1/users", {"name": name, "is_admin": name == users.ADMIN}
            )
            made = await self._ask(
                http, "POST", "/v1/tokens", {"name": "laptop", "user": name, "days": 90}
            )
            self.tokens[name] = made["token"]
        for project, members in users.MEMBERS.items():
            await self._ask(http, "POST", "/v1/projects", {"name": project})
            for name, role in members.items():
                await self._ask(
                    http, "PUT", f"/v1/projects/{project}/members/{name}", {"role": role}
                )

    async def _submit(self, http: httpx2.AsyncClient, part: DemoJob) -> None:
        body = {"task": yaml.safe_dump(part.task, sort_keys=False), "project": part.project}
        job = await self._ask(http, "POST", "/v1/jobs", body, part.owner)
        self.ids[part.name] = job["id"]
        self.sky.expect(job["id"], part)

    async def _do(self, http: httpx2.AsyncClient, part: DemoJob, deed: UserAction) -> None:
        job_id = self.ids[part.name]
        if deed.what == "forget":
            self.sky.forget(f"{job_id}-1")
        else:
            await self._ask(http, "POST", f"/v1/jobs/{job_id}/{deed.what}", deed.body, part.owner)
        self._looks[job_id] = self.clock.now() + LATE

    async def _ask(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        body: Mapping[str, Any],
        who: str | None = None,
    ) -> Any:
        """The answer to a request of somebody; None: the owner of the service, on its own machine."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        answer = await http.request(method, path, json=dict(body), headers=headers)
        fits = answer.is_success or answer.status_code == TRIED_IN_VAIN
        assert fits, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()
