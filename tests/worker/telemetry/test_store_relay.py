"""The relay of reports through the checkpoint store while the service is unreachable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_worker.protocol.report_archive import MAX_ARCHIVE_BYTES, ArchiveKey, ReportArchive
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.storage.base import Bytes, Store, StoreUnreachable
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import ReportOffset
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool, spool_file
from holdfast_worker.telemetry.store_relay import FINAL_ARCHIVES, MAX_ARCHIVES, StoreRelay
from support.fakes import FixedClock
from support.memory_store import MemoryObjects, TimedStore
from worker.support.report_server import ReportServer
from worker.support.run_driver import free_port, wait_until
from worker.telemetry.test_incarnation import create_incarnation

PROGRESS = ReportKind.PROGRESS


@pytest.fixture
def relay_objects() -> MemoryObjects:
    return MemoryObjects(FixedClock())


class UnavailableStore(TimedStore):
    """A store that raises on every write until the test opens it."""

    is_open = False

    def put(self, key: str, data: Bytes) -> None:
        if not self.is_open:
            raise StoreUnreachable("no route to host")
        super().put(key, data)


def fill(directory: Path, attempt: int, count: int) -> Spool:
    spool = Spool(directory, attempt)
    for step in range(count):
        spool.append(PROGRESS, {"step": step, "values": {}})
    return spool


def new_sender(
    directory: Path,
    open_store: Callable[[], Store],
    port: int | None = None,
    *,
    attempt: int = 1,
    quiet_s: float = 0.1,
) -> ReportSender:
    relay = StoreRelay(open_store, directory, attempt, quiet_s=quiet_s, pause_s=0.1)
    client = ServiceClient(f"http://127.0.0.1:{port or free_port()}", "job-1", "secret")
    return ReportSender(client, directory, attempt, relay=relay)


def archives(relay_objects: MemoryObjects) -> list[ReportArchive]:
    labels = filter(None, map(ArchiveKey.of_key, relay_objects.keys("inbox/")))
    return [ReportArchive.parse(label, relay_objects.objects[label.path][0]) for label in labels]


def numbers(relay_objects: MemoryObjects) -> list[int]:
    return [report.n for archive in archives(relay_objects) for report in archive.reports]


def never() -> Store:
    raise AssertionError("nothing is to be posted, and so no store to be opened")


def test_undelivered_reports_are_relayed_once(tmp_path: Path, relay_objects: MemoryObjects) -> None:
    spool = fill(tmp_path, 1, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects))

    sender.start()
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3])
    spool.append(PROGRESS, {"step": 3, "values": {}})
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3, 4])
    spool.append(ReportKind.WORKER_LEFT, {"step": 4})
    sender.close(within_s=5)

    assert relay_objects.keys() == [
        "inbox/attempt-1/000000000001-000000000003",
        "inbox/attempt-1/000000000004-000000000004",
        "inbox/attempt-1/000000000005-000000000005",
    ]
    assert {archive.offset for archive in archives(relay_objects)} == {None}
    assert archives(relay_objects)[-1].reports[0].kind is ReportKind.WORKER_LEFT


def test_store_is_not_opened_while_the_service_responds(tmp_path: Path) -> None:
    service, port = ReportServer(), free_port()
    fill(tmp_path, 1, 3)
    with service.opened(port):
        sender = new_sender(tmp_path, never, port, quiet_s=60)

        sender.start()
        wait_until(lambda: sender._delivery.acknowledged.get(1) == 3)
        sender.close()

    assert service.received == {1: [1, 2, 3]}


def test_rejected_worker_relays_nothing(tmp_path: Path) -> None:
    service, port = ReportServer(refusals=[403]), free_port()
    fill(tmp_path, 1, 3)
    with service.opened(port):
        sender = new_sender(tmp_path, never, port, quiet_s=60)

        sender.start()
        wait_until(lambda: sender._delivery.is_refused)
        sender.close()

    assert service.received == {}


def test_last_reports_of_a_short_run_are_relayed(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    fill(tmp_path, 1, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), quiet_s=3600)

    sender.start()
    sender.close()

    assert numbers(relay_objects) == [1, 2, 3]


def test_delivered_reports_are_not_relayed(tmp_path: Path, relay_objects: MemoryObjects) -> None:
    service, port = ReportServer(), free_port()
    spool = fill(tmp_path, 1, 3)
    with service.opened(port):
        sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), port, quiet_s=5)
        sender.start()
        service.wait_for(1, 3)
    spool.append(PROGRESS, {"step": 3, "values": {}})

    wait_until(lambda: numbers(relay_objects) == [4])
    sender.close(within_s=5)

    assert relay_objects.keys() == ["inbox/attempt-1/000000000004-000000000004"]


def test_returning_service_also_receives_relayed_reports(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    """The service may not have imported them; it skips reports that it has."""
    service, port = ReportServer(), free_port()
    fill(tmp_path, 1, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), port)
    sender.start()
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3])

    with service.opened(port):
        service.wait_for(1, 3)
        sender.close()

    assert service.received == {1: [1, 2, 3]}
    assert numbers(relay_objects) == [1, 2, 3]


def test_store_failure_is_logged_once_and_retried(
    tmp_path: Path, relay_objects: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    store = UnavailableStore(relay_objects)
    fill(tmp_path, 1, 3)
    sender = new_sender(tmp_path, lambda: store)
    sender.start()
    found: list[str] = []

    def is_logged() -> bool:
        found.append(capsys.readouterr().err)
        return "".join(found).count("no route to host") > 0

    wait_until(is_logged)
    store.is_open = True
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3])
    sender.close(within_s=5)
    is_logged()

    assert "".join(found).count("no route to host") == 1


def test_full_relay_accepts_only_the_exit_report(
    tmp_path: Path, relay_objects: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(1, MAX_ARCHIVES + 1):
        relay_objects.put(ArchiveKey("attempt-1", n, n).path)
    spool = fill(tmp_path, 2, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), attempt=2)
    sender.start()
    found: list[str] = []

    def is_full() -> bool:
        found.append(capsys.readouterr().err)
        return f"{MAX_ARCHIVES} report archives wait" in "".join(found)

    wait_until(is_full)
    before = len(relay_objects.objects)
    spool.append(ReportKind.WORKER_LEFT, {"step": 3})
    sender.close(within_s=5)

    assert before == MAX_ARCHIVES
    assert relay_objects.keys("inbox/attempt-2/") == ["inbox/attempt-2/000000000001-000000000004"]
    assert len(relay_objects.objects) <= MAX_ARCHIVES + FINAL_ARCHIVES


def test_archive_size_is_within_the_limit_of_the_service(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    spool = Spool(tmp_path, 1)
    values: dict[str, Json] = {f"layer-{n}/gradient-norm": n / 7 for n in range(1000)}
    for step in range(60):
        spool.append(PROGRESS, {"step": step, "values": values})
    spool.append(PROGRESS, {"step": 60, "values": {f"{n:09d}": 0.5 for n in range(100_000)}})
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects))

    sender.start()
    wait_until(lambda: numbers(relay_objects) == list(range(1, 62)))
    sender.close()

    assert numbers(relay_objects) == list(range(1, 62))
    assert len(relay_objects.objects) > 1
    assert max(len(data) for data, _ in relay_objects.objects.values()) <= MAX_ARCHIVE_BYTES


def test_damaged_line_blocks_no_earlier_reports_or_attempts(
    tmp_path: Path, relay_objects: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    """A regression test: a damaged line ended the relay."""
    fill(tmp_path, 1, 2)
    with spool_file(tmp_path, 1).open("a") as lines:
        lines.write("no report\n")
    fill(tmp_path, 2, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), attempt=2)

    sender.start()
    wait_until(lambda: len(numbers(relay_objects)) == 5)
    sender.close(within_s=5)

    assert relay_objects.keys() == [
        "inbox/attempt-1/000000000001-000000000002",
        "inbox/attempt-2/000000000001-000000000003",
    ]
    assert capsys.readouterr().err.count("the spool of attempt 1 is damaged") == 1


def test_reports_of_older_attempts_are_relayed_first(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    for attempt in (1, 2, 3):
        fill(tmp_path, attempt, attempt)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects), attempt=2)

    sender.start()
    sender.close()

    assert relay_objects.keys() == [
        "inbox/attempt-1/000000000001-000000000001",
        "inbox/attempt-2/000000000001-000000000002",
    ]


def test_worker_without_a_number_relays_under_its_incarnation(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    incarnation = create_incarnation(tmp_path)
    spool = fill(incarnation.spool, 0, 2)
    relay = StoreRelay(
        lambda: TimedStore(relay_objects),
        incarnation.spool,
        0,
        incarnation,
        quiet_s=0.1,
        pause_s=0.1,
    )
    client = ServiceClient(f"http://127.0.0.1:{free_port()}", "job-1", "secret", incarnation.name)
    sender = ReportSender(client, incarnation.spool, 0, incarnation, relay=relay)
    sender.start()
    wait_until(lambda: numbers(relay_objects) == [1, 2])

    incarnation.save_offset(ReportOffset(attempt=3, before=7))
    spool.append(PROGRESS, {"step": 2, "values": {}})
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3])
    sender.close(within_s=1)

    assert {archive.key.sender for archive in archives(relay_objects)} == {incarnation.name}
    assert [archive.offset for archive in archives(relay_objects)] == [None, (3, 7)]
    assert [
        report.attempt for archive in archives(relay_objects) for report in archive.reports
    ] == [0, 0, 0]


def test_damaged_archive_in_the_store_is_rewritten(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    spool = fill(tmp_path, 1, 3)
    relay = StoreRelay(
        lambda: TimedStore(relay_objects), tmp_path, 1, quiet_s=0.1, pause_s=0.1, replace_s=0
    )
    relay.start()
    wait_until(lambda: numbers(relay_objects) == [1, 2, 3])
    [key] = relay_objects.keys()
    whole = relay_objects.objects[key][0]
    relay_objects.put(key, whole[:20])

    def is_rewritten() -> bool:
        spool.append(PROGRESS, {"step": 9, "values": {}})
        return relay_objects.objects[key][0] == whole

    wait_until(is_rewritten)
    relay.close()
    relay.join(10)

    assert numbers(relay_objects)[:3] == [1, 2, 3]


@pytest.mark.parametrize(
    "key",
    [
        "inbox/attempt-1/000000000002-000000000001",
        "inbox/attempt-1/000000000000-000000000001",
        "inbox/attempt-1/.draft-0a1b2c3d-000000000001-000000000001",
        "inbox/../000000000001-000000000001",
        "inbox/attempt-1/1-2",
        "inbox/attempt-0/000000000001-000000000001",
        "inbox/attempt-\u0661/000000000001-000000000001",
        "commits/000000000001-000000000001",
    ],
)
def test_invalid_archive_key_parses_as_none(key: str) -> None:
    assert ArchiveKey.of_key(key) is None


def test_truncated_archive_is_detected_at_every_length(
    tmp_path: Path, relay_objects: MemoryObjects
) -> None:
    fill(tmp_path, 1, 3)
    sender = new_sender(tmp_path, lambda: TimedStore(relay_objects))
    sender.start()
    sender.close()
    [whole] = archives(relay_objects)
    data = whole.dump()

    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            ReportArchive.parse(whole.key, data[:size])
    with pytest.raises(ValueError, match="its sender is 'attempt-1'"):
        ReportArchive.parse(ArchiveKey("attempt-2", 1, 3), data)
    with pytest.raises(ValueError, match="it does not contain the reports 2 to 4"):
        ReportArchive.parse(ArchiveKey("attempt-1", 2, 4), data)
