"""What the README of a bundle says.

The evidence of a job as one file: what was asked for, what happened, what it cost, and how one follows from the other.
"""

from __future__ import annotations

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
from holdfast.api.csv_export import page
from holdfast.api.dependencies import The, TheJob
from holdfast.api.routes.billing import bill_now, bill_table, bill_view
from holdfast.api.routing import Router
from holdfast.api.views.checkpoints import checkpoint_view, told
from holdfast.api.views.jobs import event_view, job_views, proof_view
from holdfast.domain.billing.ledger import Bill
from holdfast.domain.diagnostics.manifests import job_file, lock_of, manifests
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import (
    Event,
    LaunchRequested,
    NodesReady,
    PriceChanged,
    RunsCompared,
    Submitted,
)
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import FOLD, begin, fold, follow
from holdfast.errors import BadJobFile
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.store.database import revision_of
from holdfast.store.journal import Recorded

README: Final = """# The evidence of job {job}

All that the service knew of this job, up to {until}. `sha256sum -c SHA256SUMS` checks the other files.

| File | What it is |
|---|---|
| `job-file.yaml` | the job file as it was understood, without what it leaves to defaults. Secrets have names and no values |
| `tasks/launch-NNN.yaml` | the SkyPilot task that the launcher was given for each launch, without secrets and tokens |
| `run_manifest.json` | what the newest attempt came from: configuration, code, seeds, packages, machines, as its worker told it. Of the others in `manifests/` |
| `requirements.lock.txt` | what was installed there, for `pip install --no-deps -r` |
| `job.json` | the job as `GET /v1/jobs/{job}` shows it, without what is another at every look |
| `events.jsonl` | every fact, one on a line, in the order in which they were recorded: `at` is when it happened, `recorded_at` when it was written down |
| `newest-points.json` | the newest progress point of each attempt: its step and time |
| `bill.json`, `bill.csv` | where every millisecond and every micro-dollar went; the table by attempt, zone and day in UTC |
| `prices.jsonl` | those of the facts that tell a price: who told it, when, and whether it is simulated or estimated |
| `checkpoints.jsonl` | every try to save, newest first, and what became of it |
| `certificate.json` | where it was compared with the same job that was left alone: whether both came to the same, and what was compared |
| `story.txt` | the same as sentences |
| `versions.json` | of the service, of its fold and its database; whether the rules of providers were applied |

No logs and no curves are in it, nor anything that somebody would have to be asked for: it says what was recorded.

## How the bill follows

The bill is a pure function of `events.jsonl`, `newest-points.json` and, of a job that still runs, the time above.

1. `NodesReady` opens an attempt; `CapacityLost` or `Finished` closes it. Between two attempts the job waits, which costs nothing.
2. An attempt is cut in this order: *setup* until `RestoreStarted`, *restore* until `TrainingStarted`, then steps. Steps whose result was
   kept are *useful*: they are in the newest checkpoint from which a later attempt went on (`restored_from`), or in the model at the end. Those
   after it are *lost*; the last attempt of a job that runs or has succeeded has lost none. `stall_ms` of `CheckpointCommitted`, and the time after `WorkerLeft`, is *stalled*.
   While the program has reported nothing at all, an attempt that ended with a loss is *lost*, and any other is *unmeasured*.
3. They add up to the time for which nodes stood, in integer milliseconds. Each millisecond is paid at the price that held then:
   `micros_per_hour` of `NodesReady`, and of each `PriceChanged` of the same attempt and group from its `at` on. Fractions are
   carried, so that the phases add up to what the nodes cost, in integer micro-dollars.
4. `adjustments` in `bill.json` are rules of providers, as minimums; what was paid is the sum of both.
5. `on_demand_micros` is what the useful work, with one setup, would have cost on demand, and what was paid for *unmeasured* time; what was saved is that less what was paid.

`docs/reference/bill.md` of Holdfast has all of it, with the exact cuts.
"""

router = Router(prefix="/v1")

MEDIA_TYPE: Final = "application/zip"
IN_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Of a bundle; the rest waits on the disk. Bigger: many that ask at once take the memory of all. Smaller: more writing."""
PIECE_BYTES: Final = 64 * 1024
"""Of what is sent in one go. As above."""
EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""When all files were made, as far as the archive says: the same facts give the same bytes."""
PASSING: Final = frozenset({"can", "last_seen_at", "trouble", "tidying"})
"""What is told of a job that is no fact of it: it is another at every look."""


@router.get(
    "/jobs/{job_id}/bundle",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
    tags=["history"],
)
def download_bundle(job: TheJob, services: The) -> StreamingResponse:
    """All that is known of a job as a zip file; README.md in it says what is what. That of an ended job stays the same."""
    archive: IO[bytes] = SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed when it was sent
    _write(archive, f"holdfast-{job.id}", files(services, job))
    headers = {
        "Content-Disposition": f'attachment; filename="holdfast-{job.id}.zip"',
        "Content-Length": str(archive.tell()),
    }
    archive.seek(0)
    return StreamingResponse(_pieces(archive), media_type=MEDIA_TYPE, headers=headers)


def files(services: Services, job: Job) -> Iterator[tuple[str, str]]:
    """The name and the text of each file, but for the list of digests."""
    # All but job.json is told by the same facts, whatever comes meanwhile.
    facts = services.journal.events(job.id)
    reached = services.reading.reached([job.id]).get(job.id, {})
    account = bill_now(services, facts, reached)
    events = [fact.event for fact in facts]
    job = fold(job.id, events)
    shown = job_views(services, [job])[0].model_dump(mode="json", exclude=set(PASSING))
    spec = JobSpec.stored(services.journal.submission(job.id).spec)
    yield "README.md", README.format(job=job.id, until=account.until.isoformat())
    yield "job-file.yaml", _yaml(job_file(spec))
    yield from _tasks(job.id, spec, events)
    yield from _manifests(job.id, spec, events)
    yield "job.json", _json(shown)
    yield "events.jsonl", _lines(event_view(fact) for fact in facts)
    yield (
        "newest-points.json",
        _json({str(a): {"step": p.step, "at": p.at.isoformat()} for a, p in reached.items()}),
    )
    yield "bill.json", _json(bill_view(job, account, facts).model_dump(mode="json"))
    yield "bill.csv", page(*bill_table(job, account))
    yield "prices.jsonl", _lines(event_view(fact) for fact in facts if _tells_price(fact))
    yield "checkpoints.jsonl", _lines(checkpoint_view(save) for save in told(facts).all())
    if proofs := [event for event in events if isinstance(event, RunsCompared)]:
        yield "certificate.json", _json(proof_view(proofs[-1]).model_dump(mode="json"))
    yield "story.txt", _story(job, events, account)
    yield "versions.json", _json(_versions(services))


def _tasks(job_id: str, spec: JobSpec, events: list[Event]) -> Iterator[tuple[str, str]]:
    """The task of each launch as its launcher was given it, but for secrets and what is known at the launch alone."""
    first = events[0]
    assert isinstance(first, Submitted)
    job = begin(job_id, first)
    for event in events[1:]:
        job = follow(job, event)
        if isinstance(event, LaunchRequested):
            name = f"tasks/launch-{event.launch:03d}.yaml"
            if job.launch_limits is None:
                yield name, first.task
                continue
            try:
                yield name, render(spec.with_limits(job.launch_limits)).text
            except BadJobFile as flaw:
                yield name, f"# This version cannot render it any more: {flaw.detail}\n"


def _manifests(job_id: str, spec: JobSpec, events: list[Event]) -> Iterator[tuple[str, str]]:
    """What each attempt came from, and what the newest of them had installed; nothing where no worker told."""
    told = manifests(job_id, spec, events)
    for attempt, manifest in told.items():
        yield f"manifests/attempt-{attempt:03d}.json", _json(manifest)
    if told:
        newest = told[max(told)]
        yield "run_manifest.json", _json(newest)
        yield "requirements.lock.txt", lock_of(newest)


def _tells_price(fact: Recorded) -> bool:
    return isinstance(fact.event, NodesReady | PriceChanged)


def _story(job: Job, events: list[Event], account: Bill) -> str:
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
    entry.create_system = 3  # Unix, wherever it is made.
    return entry


def _pieces(archive: IO[bytes]) -> Iterator[bytes]:
    with archive:
        while piece := archive.read(PIECE_BYTES):
            yield piece
