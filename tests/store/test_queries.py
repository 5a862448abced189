"""Lists, streams and points as seen by readers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import Outcome, TagsChanged
from holdfast.domain.jobfile.spec import Engine as LauncherType
from holdfast.domain.jobs.selection import JobFilter, parse_selector
from holdfast.errors import BadRequest
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import LastObservation, Queries
from holdfast.store.tables.jobs import job_tags, jobs
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine, delete, update
from support.events import at, finished, launched, ready, replaced, submitted, training
from support.fakes import FixedClock


@pytest.fixture
def queries(engine: Engine, clock: FixedClock) -> Queries:
    """Seven jobs: two of each three seconds, the last one ended."""
    journal = Journal(engine, clock)
    for number in range(7):
        job = journal.submit(f"job-{number}", submitted(number // 2))
        if number % 2:
            journal.append(job, [launched(9)])
    journal.append(journal.read("job-6"), [finished(9, Outcome.FAILED)])
    return Queries(engine)


def ids(queries: Queries, *, limit: int, statuses: tuple[str, ...] = ()) -> list[list[str]]:
    """All pages, each as the ids of its jobs."""
    where = JobFilter(statuses=statuses)
    page = queries.jobs(limit=limit, where=where)
    pages = [[job.id for job in page.jobs]]
    while page.next is not None:
        page = queries.jobs(limit=limit, where=where, after=page.next)
        pages.append([job.id for job in page.jobs])
    return pages


def test_pages_hold_every_job_once_and_the_newest_first(queries: Queries) -> None:
    assert ids(queries, limit=3) == [["job-6", "job-5", "job-4"], ["job-3", "job-2", "job-1"], ["job-0"]]  # fmt: skip
    assert ids(queries, limit=7) == [[f"job-{number}" for number in range(6, -1, -1)]]


def test_page_can_be_filtered_by_state(queries: Queries) -> None:
    assert ids(queries, limit=2, statuses=("provisioning",)) == [["job-5", "job-3"], ["job-1"]]
    assert ids(queries, limit=9, statuses=("failed", "queued")) == [["job-6", "job-4", "job-2", "job-0"]]  # fmt: skip
    assert ids(queries, limit=9, statuses=("succeeded",)) == [[]]


def test_unfinished_jobs_are_read_again_after_each_event(
    queries: Queries, engine: Engine, clock: FixedClock
) -> None:
    journal = Journal(engine, clock)
    first = {job.id: job for job in queries.unfinished(9)}
    journal.append(first["job-0"], [launched(9)])
    journal.append(first["job-2"], [finished(9, Outcome.FAILED)])
    journal.submit("job-9", submitted(9))

    second = {job.id: job for job in queries.unfinished(9)}

    assert [*second] == ["job-0", "job-1", "job-3", "job-4", "job-5", "job-9"]
    assert all(job == journal.read(job_id) for job_id, job in second.items())
    assert second["job-1"] is first["job-1"]
    assert [job.id for job in queries.unfinished(2)] == ["job-0", "job-1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("müller", ["job-1", "job-0"]),
        ("MÜLL", ["job-1", "job-0"]),
        ("r [1]*", ["job-1"]),
        ("JOB-0", ["job-0"]),
        ("?", []),
        (".", []),
        ("\\", []),
        ("^", ["job-1"]),
        ("ß", ["job-0"]),
    ],
)
def test_a_text_is_found_in_any_case_whatever_the_database(
    engine: Engine, clock: FixedClock, text: str, found: list[str]
) -> None:
    """SQLite folds the case of ASCII letters alone, and so does PostgreSQL with some locales."""
    journal = Journal(engine, clock)
    for number, name in enumerate(("Straße Müller", "MÜLLER [1]*]^")):
        journal.submit(f"job-{number}", replace(submitted(number), name=name))

    page = Queries(engine).jobs(limit=9, where=JobFilter(find=text))

    assert [job.id for job in page.jobs] == found


def test_new_jobs_do_not_shift_the_pages_that_follow(
    queries: Queries, engine: Engine, clock: FixedClock
) -> None:
    first = queries.jobs(limit=3)
    Journal(engine, clock).submit("job-7", submitted(99))

    second = queries.jobs(limit=3, after=first.next)

    assert [job.id for job in second.jobs] == ["job-3", "job-2", "job-1"]


def test_unknown_cursor_is_refused(queries: Queries) -> None:
    with pytest.raises(BadRequest, match="start without a cursor"):
        queries.jobs(limit=3, after="job-99")


def test_stream_continues_at_its_cursor(queries: Queries) -> None:
    events, after = [], 0
    while batch := queries.stream(after=after, limit=4):
        events += batch
        after = batch[-1].cursor

    assert [item.cursor for item in events] == [*range(1, 12)]
    assert queries.stream(after=11) == []


def test_the_stream_of_one_job_is_its_log(queries: Queries) -> None:
    log = queries.stream(after=0, job_id="job-1")

    assert [item.kind for item in log] == ["Submitted", "LaunchRequested"]
    assert log == queries.events(["job-1", "job-99"])["job-1"]
    assert queries.stream(after=log[0].cursor, job_id="job-1") == log[1:]


def test_events_of_many_jobs_are_sorted(queries: Queries) -> None:
    facts = queries.events([f"job-{number}" for number in range(7)])

    assert {job_id: [item.seq for item in log] for job_id, log in facts.items()} == {
        f"job-{number}": [1, 2] if number % 2 or number == 6 else [1] for number in range(7)
    }
    assert queries.events([]) == {}


def test_last_observation_is_stored_beside_the_log(queries: Queries, engine: Engine) -> None:
    watches = LeaseTable(engine)
    watches.release("job-0", leased_until=at(0), due_at=at(60), seen_at=at(50), trouble=None)
    watches.release("job-0", leased_until=at(60), due_at=at(61), seen_at=None, trouble="no answer")

    assert queries.last_observation("job-0") == LastObservation(at(50), "no answer")
    assert queries.last_observation("job-1") == LastObservation(None, None)
    assert queries.last_observation("job-99") == LastObservation(None, None)


def test_times_are_the_same_moments_whatever_the_database(queries: Queries, engine: Engine) -> None:
    [job] = [job for job in queries.jobs(limit=9).jobs if job.id == "job-2"]
    [fact] = queries.stream(after=0, job_id="job-2")

    assert job.submitted_at == fact.event.at == at(1)
    assert fact.event.at.utcoffset() == at(1).utcoffset()


def test_the_newest_points_are_kept_in_order(engine: Engine, clock: FixedClock) -> None:
    journal = Journal(engine, clock)
    journal.append(journal.submit("job-1", submitted()), [launched(1), ready(2)])

    assert Queries(engine).points("job-1", limit=5) == []
    assert Queries(engine).latest_points(["job-1"]) == {}


def test_newest_runtime_metrics_are_those_of_jobs_in_training(
    engine: Engine, clock: FixedClock
) -> None:
    journal = Journal(engine, clock)
    for job_id in ("trains", "is-degraded", "is-silent", "has-ended"):
        job = journal.submit(job_id, submitted(0))
        journal.append(job, [launched(1), ready(2, attempt=1), training(3, attempt=1)])
    measured = [{"holdfast/loading": 0.2}, {"holdfast/loading": 0.4}, {"loss": 1.0}]
    for job_id, points in {
        "trains": measured,
        "is-degraded": [{"holdfast/loading": 0.6}],
        "is-silent": [{"loss": 1.0}, {"my-holdfast/loading": 1.0}],
        "has-ended": measured,
    }.items():
        reports = [
            Report(1, n, at(n).isoformat(), ReportKind.PROGRESS, {"step": n, "values": {**values}})
            for n, values in enumerate(points, 1)
        ]
        journal.ingest(job_id, 1, reports)
    journal.append(journal.read("has-ended"), [finished(9, Outcome.SUCCEEDED)])

    journal.append(journal.read("is-degraded"), [replaced(9, hosted=(1,))])

    newest = [reading.values["holdfast/loading"] for reading in Queries(engine).readings().values()]
    assert sorted(newest) == [0.4, 0.6]


TAGGED = ({"team": "nlp", "stage": "dev"}, {"team": "nlp"}, {"team": "vision", "stage": "prod"}, {})


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("team=nlp", [1, 0]),
        ("team==nlp,stage!=dev", [1]),
        ("stage!=dev", [3, 2, 1]),
        ("stage", [2, 0]),
        ("!stage", [3, 1]),
        ("team in (vision, nlp),stage notin (dev)", [2, 1]),
        ("team=nlp' OR 1", []),
    ],
)
def test_jobs_are_selected_by_their_tags(
    engine: Engine, clock: FixedClock, selector: str, found: list[int]
) -> None:
    journal = Journal(engine, clock)
    for number, tags in enumerate(TAGGED):
        journal.submit(f"job-{number}", submitted(number, tags=tags))

    page = Queries(engine).jobs(limit=9, where=JobFilter(tags=parse_selector(selector)))

    assert [job.id for job in page.jobs] == [f"job-{number}" for number in found]


def test_changed_tags_and_rebuilt_rows_are_found(engine: Engine, clock: FixedClock) -> None:
    """A row that an older version inserted has neither name nor tags in columns."""
    journal, queries = Journal(engine, clock), Queries(engine)
    job = journal.submit("job-1", submitted(tags={"team": "nlp"}))
    nlp, vision = (JobFilter(tags=parse_selector(f"team={team}")) for team in ("nlp", "vision"))

    job = journal.append(job, [TagsChanged(at=at(5), tags={"team": "vision"})])
    assert (queries.jobs(limit=9, where=nlp).jobs, queries.jobs(limit=9, where=vision).jobs) == ((), (job,))  # fmt: skip
    with engine.begin() as connection:
        connection.execute(update(jobs).values(name=None, engine=None))
        connection.execute(delete(job_tags))
    assert journal.rebuild_stale() == 1

    local = JobFilter(launchers=(LauncherType.LOCAL,), find="TINY", tags=vision.tags)
    assert queries.jobs(limit=9, where=local).jobs == (job,)
    assert queries.jobs(limit=9, where=JobFilter(launchers=(LauncherType.SLURM,))).jobs == ()
