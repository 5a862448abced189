"""The evidence of a job as one zip file.

It contains the job file, events and bill, and a README that explains them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

import yaml
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import holdfast
from holdfast.api.csv_export import csv_text
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.billing import bill_now, bill_table, bill_view
from holdfast.api.routes.diagnostics import excerpts
from holdfast.api.routing import Router
from holdfast.api.views.checkpoints import checkpoint_history, checkpoint_view
from holdfast.api.views.jobs import event_view, job_views, proof_view
from holdfast.domain.billing.bill import Bill
from holdfast.domain.diagnostics.manifests import job_file, manifests, requirements_lock
from holdfast.domain.diagnostics.rank_presence import start_lines
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import (
    Event,
    LaunchRequested,
    NodeLost,
    NodeReplaced,
    NodesReady,
    PriceChanged,
    Resized,
    RunsCompared,
    current_submission,
)
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import FOLD, create_job, fold, replay_event
from holdfast.errors import BadJobFile, LauncherUnreachable
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.store.database import revision_of
from holdfast.store.journal import RecordedEvent

README: Final = """# The evidence of job {job}

Everything that the service recorded about this job until {until}. `sha256sum -c SHA256SUMS` verifies the other files.

| File | Content |
|---|---|
| `job-file.yaml` | the parsed job file without default values. Secrets have names and no values |
| `tasks/launch-NNN.yaml` | the SkyPilot task that the launcher received for each launch, without secrets and tokens |
| `run_manifest.json` | the manifest of the newest attempt, as reported by its worker: configuration, code, seeds, packages, machines. `manifests/` has those of all attempts |
| `requirements.lock.txt` | its installed packages, for `pip install --no-deps -r` |
| `job.json` | the job as in `GET /v1/jobs/{job}`, without fields that change at every request |
| `events.jsonl` | all events, one per line, in recorded order: `at` is when it happened, `recorded_at` when it was recorded |
| `newest-points.json` | the newest progress point of each attempt: its step and time |
| `bill.json`, `bill.csv` | every millisecond and micro-dollar; the table is by attempt, zone and day in UTC |
| `prices.jsonl` | the events that contain a price: its source, its date, and whether it is simulated or estimated |
| `checkpoints.jsonl` | every attempted save with its result, newest first |
| `certificate.json` | the comparison with an uninterrupted copy, if any: the result, and what was compared |
| `story.txt` | the history in sentences |
| `start.txt` | how the newest attempt started: its lines of preflight, probe and other phases of the start, and of each rank, from the logs. Absent without such lines |
| `versions.json` | versions of the service, its event fold and its database; whether provider rules were applied |

Apart from `start.txt`, the bundle contains recorded data only: no logs and no metric series, which would have to be read elsewhere.

## How the bill is computed

The bill is a pure function of `events.jsonl`, `newest-points.json` and, for a running job, the time above.

1. `NodesReady` opens an attempt; `CapacityLost` or `Finished` closes it. Between two attempts the job waits, which costs nothing.
2. An attempt is divided in this order: *setup* until `RestoreStarted`, *restore* until `TrainingStarted`, then steps.
   Steps are *useful* if a later attempt resumed from a checkpoint that contains them (`restored_from`), or if the final model does.
   Steps after that are *lost*; the last attempt of a job that is running or has succeeded has lost none.
   `stall_ms` of `CheckpointCommitted`, `paused_ms` before `RanksReplaced`, and the time after `WorkerLeft`, is *stalled*.
   An attempt whose program reported nothing is *lost* if it ended with a capacity loss, and *unmeasured* otherwise.
3. The phases add up to the time with nodes, in integer milliseconds. Each millisecond has the price of its time:
   `micros_per_hour` of `NodesReady`, and of each later `PriceChanged` of the same attempt and group from its `at` on.
   `NodeLost` and `NodeReplaced` of the attempt change the price of its nodes, group 0, in the same way.
   Fractions are carried, so that the phases add up to the cost of the nodes, in integer micro-dollars.
4. `adjustments` in `bill.json` are provider rules, such as minimums; the amount paid is the sum of both.
5. `on_demand_micros` is the on-demand cost of the useful work, with one setup, plus the amount paid for *unmeasured* time. The savings are
   that amount less the amount paid.

`docs/reference/bill.md` of Holdfast describes all of it, with the exact divisions.
"""

router = Router(prefix="/v1")

MEDIA_TYPE: Final = "application/zip"
IN_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a bundle held in memory; the rest is written to disk.

A higher value uses more memory per request; a lower value writes more.
"""
CHUNK_BYTES: Final = 64 * 1024
"""Bytes sent at once.

A higher value uses more memory per request; a lower value makes more writes.
"""
EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Modification time of all files in the archive, so that the same events give the same bytes."""
VOLATILE_FIELDS: Final = frozenset({"can", "last_seen_at", "trouble", "tidying"})
"""Fields of a job that do not follow from its events and change between reads."""


@router.get(
    "/jobs/{job_id}/bundle",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
    tags=["history"],
)
async def download_bundle(job: TheJob, services: TheServices) -> StreamingResponse:
    """Download everything known about a job as a zip file, explained in its README.md.

    The bundle of an ended job stays the same while its logs are kept.
    """
    archive: IO[bytes] = SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed when it was sent
    start = await _start(services, job)
    await asyncio.to_thread(_write, archive, f"holdfast-{job.id}", files(services, job, start))
    headers = {
        "Content-Disposition": f'attachment; filename="holdfast-{job.id}.zip"',
        "Content-Length": str(archive.tell()),
    }
    archive.seek(0)
    return StreamingResponse(_chunks(archive), media_type=MEDIA_TYPE, headers=headers)


async def _start(services: Services, job: Job) -> str:
    """The lines in which the logs of the newest attempt describe its start; empty without any."""
    try:
        logs = await excerpts(services, job, job.attempt, tail_bytes=0) if job.attempt else []
    except LauncherUnreachable as error:
        return f"The logs could not be read: {error.detail}\n"
    return "".join(f"{line}\n" for line in start_lines(logs))


def files(services: Services, job: Job, start: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file except the list of digests."""
    # All files but job.json are computed from the same events, even if new ones arrive in the meantime.
    facts = services.journal.events(job.id)
    reached = services.queries.latest_points([job.id]).get(job.id, {})
    account = bill_now(services, facts, reached)
    events = [fact.event for fact in facts]
    job = fold(job.id, events)
    shown = job_views(services, [job])[0].model_dump(mode="json", exclude=set(VOLATILE_FIELDS))
    spec = JobSpec.from_stored(services.journal.submission(job.id).spec)
    yield "README.md", README.format(job=job.id, until=account.until.isoformat())
    yield "job-file.yaml", _yaml(job_file(spec))
    yield from _tasks(job.id, events)
    yield from _manifests(job.id, events)
    yield "job.json", _json(shown)
    yield "events.jsonl", _lines(event_view(fact) for fact in facts)
    yield (
        "newest-points.json",
        _json({str(a): {"step": p.step, "at": p.at.isoformat()} for a, p in reached.items()}),
    )
    yield "bill.json", _json(bill_view(job, account, facts).model_dump(mode="json"))
    yield "bill.csv", csv_text(*bill_table(job, account))
    yield "prices.jsonl", _lines(event_view(fact) for fact in facts if _has_price(fact))
    yield (
        "checkpoints.jsonl",
        _lines(checkpoint_view(save) for save in checkpoint_history(facts).attempts()),
    )
    if proofs := [event for event in events if isinstance(event, RunsCompared)]:
        yield "certificate.json", _json(proof_view(proofs[-1]).model_dump(mode="json"))
    yield "story.txt", _timeline(job, events, account)
    if start:
        yield "start.txt", start
    yield "versions.json", _json(_versions(services))


def _tasks(job_id: str, events: list[Event]) -> Iterator[tuple[str, str]]:
    """Yield the task of each launch as its launcher received it.

    Secrets and values known only at launch are omitted.
    """
    asked = current_submission(events[:1])
    job = create_job(job_id, asked)
    for event in events[1:]:
        job = replay_event(job, event)
        if isinstance(event, Resized):
            asked = event.applied_to(asked)
        if isinstance(event, LaunchRequested):
            name = f"tasks/launch-{event.launch:03d}.yaml"
            if job.launch_limits is None:
                yield name, asked.task
                continue
            try:
                spec = JobSpec.from_stored(asked.spec).with_limits(job.launch_limits)
                yield name, render(spec).text
            except BadJobFile as flaw:
                yield name, f"# This version can no longer render it: {flaw.detail}\n"


def _manifests(job_id: str, events: list[Event]) -> Iterator[tuple[str, str]]:
    """Yield the manifest of each attempt and the packages of the newest.

    Without manifests there are none.
    """
    by_attempt = manifests(job_id, events)
    for attempt, manifest in by_attempt.items():
        yield f"manifests/attempt-{attempt:03d}.json", _json(manifest)
    if by_attempt:
        newest = by_attempt[max(by_attempt)]
        yield "run_manifest.json", _json(newest)
        yield "requirements.lock.txt", requirements_lock(newest)


def _has_price(fact: RecordedEvent) -> bool:
    return isinstance(fact.event, NodesReady | PriceChanged | NodeLost | NodeReplaced)


def _timeline(job: Job, events: list[Event], account: Bill) -> str:
    lines = (
        f"{sentence.at:%Y-%m-%d %H:%M:%SZ}  {sentence.text}" if sentence.at else sentence.text
        for sentence in timeline(job, events, account)
    )
    return "".join(f"{line}\n" for line in lines)


def _versions(services: Services) -> Mapping[str, Any]:
    return {
        "holdfast": holdfast.__version__,
        "fold": FOLD,
        "database_revision": revision_of(services.engine),
        "billing_rules": services.billing_rules,
    }


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _lines(items: Iterable[BaseModel]) -> str:
    return "".join(f"{item.model_dump_json()}\n" for item in items)


def _write(archive: IO[bytes], folder: str, contents: Iterable[tuple[str, str]]) -> None:
    sums = []
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in contents:
            data = text.encode()
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            made.writestr(_entry(f"{folder}/{name}"), data)
        made.writestr(_entry(f"{folder}/SHA256SUMS"), "".join(sums))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # Always Unix, wherever the archive is created.
    return entry


def _chunks(archive: IO[bytes]) -> Iterator[bytes]:
    with archive:
        while piece := archive.read(CHUNK_BYTES):
            yield piece
