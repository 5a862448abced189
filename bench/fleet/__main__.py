"""Measures actions on many jobs, and the queue. See README.md; run it with `make bench-fleet`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.domain.queue.admission import evaluate
from holdfast.domain.queue.quotas import Quota, QuotaScope
from holdfast.store.database import open_database, upgrade
from support.events import DAWN
from support.queue_simulation import QueueSimulation, backlog, service_quota
from support.simulated_service import JOB_FILE, SimulatedService, client, open_world

MOST_PREVIEW_S = 1.0
MOST_STEPS = 1.1
"""Steps of the reconciler for each job: one pass over all of them, and the rest of a batch."""
USERS = 20
QUOTAS = (
    service_quota(256),
    *(Quota(scope=QuotaScope.USER, name=f"user-{n}", jobs=30, gpus=128) for n in range(USERS)),
)


def main() -> None:
    """Measure and print; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs of one action, at most 1000")
    parser.add_argument("--waiting", type=int, default=10_000, help="jobs in the queue")
    requested = parser.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}")
    with _service() as world:
        missed = _measure_action(world, requested.jobs)
    _measure_queue(requested.waiting)
    sys.exit(missed)


@contextmanager
def _service() -> Iterator[SimulatedService]:
    """Run a service over the simulated cloud, with an empty database."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{folder}/holdfast.db")
        upgrade(engine)
        app, parts = open_world(engine, Path(folder))
        with client(app) as http:
            yield SimulatedService(app, http, *parts)
        engine.dispose()


def _measure_action(world: SimulatedService, count: int) -> bool:
    """Cancel jobs of which one in ten trains and the others wait; return whether a goal was missed."""
    for _ in range(count // 10):
        world.submit(JOB_FILE)
    world.pass_time(10)
    for _ in range(count - count // 10):
        world.submit(JOB_FILE)
    before = _states(world, count)
    asked: dict[str, Any] = {"action": "cancel", "selection": {"selector": "team=nlp"}}

    preview_s, preview = _timed(world, {**asked, "dry_run": True})
    ids = [job["job_id"] for job in preview["jobs"] if job["result"] == "done"]
    action_s, done = _timed(world, {**asked, "job_ids": ids})
    # Those that train still have to save; all others end at once.
    steps, begun_s = 0, time.perf_counter()
    while _states(world, count)["cancelled"] < count - before["training"] and steps < 10 * count:
        steps += asyncio.run(world.reconciler.sweep())
    steps_s = time.perf_counter() - begun_s

    print(f"{count:,} jobs: {_named(before)}")
    print(f"  preview of a cancellation   {preview_s:6.2f} s, {preview['done']:,} jobs")
    print(f"  cancellation                {action_s:6.2f} s, {done['done']:,} jobs")
    after = _named(_states(world, count))
    print(f"  steps of the reconciler     {steps:6,}   in {steps_s:.1f} s: {after}")
    missed = preview_s > MOST_PREVIEW_S or steps > MOST_STEPS * count
    goal = f"a preview within {MOST_PREVIEW_S:g} s, and {MOST_STEPS:g} steps for each job"
    print(f"{'MISSED' if missed else 'reached'}: {goal}")
    return missed


def _states(world: SimulatedService, count: int) -> Counter[str]:
    jobs = world.services.queries.jobs(limit=count).jobs
    return Counter(job.status for job in jobs)


def _named(states: Counter[str]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in states.most_common())


def _timed(world: SimulatedService, body: dict[str, Any]) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    answer = world.http.post("/v1/jobs/actions", json=body)
    took_s = time.perf_counter() - begun_s
    if answer.status_code != 200:
        sys.exit(answer.text)
    return took_s, answer.json()


def _measure_queue(waiting: int) -> None:
    """Evaluate a queue of jobs of twenty users under quotas."""
    simulation = QueueSimulation(QUOTAS, backlog(7, users=USERS, jobs=waiting + 24))
    simulation.now = DAWN + timedelta(days=1)
    simulation.step()
    state = simulation.state()
    took_s = list[float]()
    for _ in range(5):
        begun_s = time.process_time()
        evaluate(state)
        took_s.append(time.process_time() - begun_s)
    print(
        f"queue of {len(state.waiting):,} jobs: {1000 * min(took_s):.0f} ms CPU for one evaluation"
    )


if __name__ == "__main__":
    main()
