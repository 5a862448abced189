"""What a worker leaves in its checkpoint store while the service does not answer: in order, bounded, and never in the way."""

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
def shed() -> MemoryObjects:
    return MemoryObjects(FixedClock())


class Slammed(TimedStore):
    """A store that answers nothing until it is opened."""

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


def courier(
    directory: Path,
    open_store: Callable[[], Store],
    port: int | None = None,
    *,
    attempt: int = 1,
    quiet_s: float = 0.1,
) -> ReportSender:
    postbox = StoreRelay(open_store, directory, attempt, quiet_s=quiet_s, pause_s=0.1)
    doorstep = ServiceClient(f"http://127.0.0.1:{port or free_port()}", "job-1", "secret")
    return ReportSender(doorstep, directory, attempt, relay=postbox)


def parcels(shed: MemoryObjects) -> list[ReportArchive]:
    labels = filter(None, map(ArchiveKey.of_key, shed.keys("inbox/")))
    return [ReportArchive.parse(label, shed.objects[label.path][0]) for label in labels]


def numbers(shed: MemoryObjects) -> list[int]:
    return [report.n for parcel in parcels(shed) for report in parcel.reports]


def never() -> Store:
    raise AssertionError("nothing is to be posted, and so no store to be opened")


def test_undelivered_reports_are_relayed_once(tmp_path: Path, shed: MemoryObjects) -> None:
    spool = fill(tmp_path, 1, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed))

    bringer.start()
    wait_until(lambda: numbers(shed) == [1, 2, 3])
    spool.append(PROGRESS, {"step": 3, "values": {}})
    wait_until(lambda: numbers(shed) == [1, 2, 3, 4])
    spool.append(ReportKind.WORKER_LEFT, {"step": 4})
    bringer.close(within_s=5)

    assert shed.keys() == [
        "inbox/attempt-1/000000000001-000000000003",
        "inbox/attempt-1/000000000004-000000000004",
        "inbox/attempt-1/000000000005-000000000005",
    ]
    assert {parcel.offset for parcel in parcels(shed)} == {None}
    assert parcels(shed)[-1].reports[0].kind is ReportKind.WORKER_LEFT


def test_where_the_service_answers_no_store_is_opened(tmp_path: Path) -> None:
    service, port = ReportServer(), free_port()
    fill(tmp_path, 1, 3)
    with service.opened(port):
        bringer = courier(tmp_path, never, port, quiet_s=60)

        bringer.start()
        bringer.close()

    assert service.told == {1: [1, 2, 3]}


def test_rejected_worker_relays_nothing(tmp_path: Path) -> None:
    service, port = ReportServer(refusals=[403]), free_port()
    fill(tmp_path, 1, 3)
    with service.opened(port):
        bringer = courier(tmp_path, never, port)

        bringer.start()
        bringer.close()

    assert service.told == {}


def test_last_reports_of_a_short_run_are_relayed(tmp_path: Path, shed: MemoryObjects) -> None:
    fill(tmp_path, 1, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed), quiet_s=3600)

    bringer.start()
    bringer.close()

    assert numbers(shed) == [1, 2, 3]


def test_delivered_reports_are_not_relayed(tmp_path: Path, shed: MemoryObjects) -> None:
    service, port = ReportServer(), free_port()
    spool = fill(tmp_path, 1, 3)
    with service.opened(port):
        bringer = courier(tmp_path, lambda: TimedStore(shed), port, quiet_s=5)
        bringer.start()
        service.wait_for(1, 3)
    spool.append(PROGRESS, {"step": 3, "values": {}})

    wait_until(lambda: numbers(shed) == [4])
    bringer.close(within_s=5)

    assert shed.keys() == ["inbox/attempt-1/000000000004-000000000004"]


def test_returning_service_receives_relayed_reports_too(
    tmp_path: Path, shed: MemoryObjects
) -> None:
    """It may never have looked into the store; what it has, it passes over."""
    service, port = ReportServer(), free_port()
    fill(tmp_path, 1, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed), port)
    bringer.start()
    wait_until(lambda: numbers(shed) == [1, 2, 3])

    with service.opened(port):
        service.wait_for(1, 3)
        bringer.close()

    assert service.told == {1: [1, 2, 3]}
    assert numbers(shed) == [1, 2, 3]


def test_store_failure_is_logged_once_and_retried(
    tmp_path: Path, shed: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Slammed(shed)
    fill(tmp_path, 1, 3)
    bringer = courier(tmp_path, lambda: store)
    bringer.start()
    found: list[str] = []

    def hear() -> bool:
        found.append(capsys.readouterr().err)
        return "".join(found).count("no route to host") > 0

    wait_until(hear)
    store.is_open = True
    wait_until(lambda: numbers(shed) == [1, 2, 3])
    bringer.close(within_s=5)
    hear()

    assert "".join(found).count("no route to host") == 1


def test_full_relay_accepts_only_the_exit_report(
    tmp_path: Path, shed: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(1, MAX_ARCHIVES + 1):
        shed.put(ArchiveKey("attempt-1", n, n).path)
    spool = fill(tmp_path, 2, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed), attempt=2)
    bringer.start()
    found: list[str] = []

    def is_full() -> bool:
        found.append(capsys.readouterr().err)
        return f"{MAX_ARCHIVES} report archives wait" in "".join(found)

    wait_until(is_full)
    before = len(shed.objects)
    spool.append(ReportKind.WORKER_LEFT, {"step": 3})
    bringer.close(within_s=5)

    assert before == MAX_ARCHIVES
    assert shed.keys("inbox/attempt-2/") == ["inbox/attempt-2/000000000001-000000000004"]
    assert len(shed.objects) <= MAX_ARCHIVES + FINAL_ARCHIVES


def test_no_parcel_is_larger_than_the_service_reads(tmp_path: Path, shed: MemoryObjects) -> None:
    spool = Spool(tmp_path, 1)
    values: dict[str, Json] = {f"layer-{n}/gradient-norm": n / 7 for n in range(1000)}
    for step in range(60):
        spool.append(PROGRESS, {"step": step, "values": values})
    spool.append(PROGRESS, {"step": 60, "values": {f"{n:09d}": 0.5 for n in range(100_000)}})
    bringer = courier(tmp_path, lambda: TimedStore(shed))

    bringer.start()
    bringer.close()

    assert numbers(shed) == list(range(1, 62))
    assert len(shed.objects) > 1
    assert max(len(data) for data, _ in shed.objects.values()) <= MAX_ARCHIVE_BYTES


def test_damaged_line_blocks_no_earlier_reports_or_attempts(
    tmp_path: Path, shed: MemoryObjects, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to end the postbox, which posted nothing from then on."""
    fill(tmp_path, 1, 2)
    with spool_file(tmp_path, 1).open("a") as lines:
        lines.write("no report\n")
    fill(tmp_path, 2, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed), attempt=2)

    bringer.start()
    wait_until(lambda: len(numbers(shed)) == 5)
    bringer.close(within_s=5)

    assert shed.keys() == [
        "inbox/attempt-1/000000000001-000000000002",
        "inbox/attempt-2/000000000001-000000000003",
    ]
    assert capsys.readouterr().err.count("the spool of attempt 1 is damaged") == 1


def test_reports_of_older_attempts_are_relayed_first(tmp_path: Path, shed: MemoryObjects) -> None:
    for attempt in (1, 2, 3):
        fill(tmp_path, attempt, attempt)
    bringer = courier(tmp_path, lambda: TimedStore(shed), attempt=2)

    bringer.start()
    bringer.close()

    assert shed.keys() == [
        "inbox/attempt-1/000000000001-000000000001",
        "inbox/attempt-2/000000000001-000000000002",
    ]


def test_worker_without_a_number_relays_under_its_incarnation(
    tmp_path: Path, shed: MemoryObjects
) -> None:
    who = create_incarnation(tmp_path)
    spool = fill(who.spool, 0, 2)
    postbox = StoreRelay(lambda: TimedStore(shed), who.spool, 0, who, quiet_s=0.1, pause_s=0.1)
    doorstep = ServiceClient(f"http://127.0.0.1:{free_port()}", "job-1", "secret", who.name)
    bringer = ReportSender(doorstep, who.spool, 0, who, relay=postbox)
    bringer.start()
    wait_until(lambda: numbers(shed) == [1, 2])

    who.save_offset(ReportOffset(attempt=3, before=7))
    spool.append(PROGRESS, {"step": 2, "values": {}})
    wait_until(lambda: numbers(shed) == [1, 2, 3])
    bringer.close(within_s=1)

    assert {parcel.key.sender for parcel in parcels(shed)} == {who.name}
    assert [parcel.offset for parcel in parcels(shed)] == [None, (3, 7)]
    assert [report.attempt for parcel in parcels(shed) for report in parcel.reports] == [0, 0, 0]


def test_damaged_archive_in_the_store_is_rewritten(tmp_path: Path, shed: MemoryObjects) -> None:
    spool = fill(tmp_path, 1, 3)
    postbox = StoreRelay(
        lambda: TimedStore(shed), tmp_path, 1, quiet_s=0.1, pause_s=0.1, replace_s=0
    )
    postbox.start()
    wait_until(lambda: numbers(shed) == [1, 2, 3])
    [key] = shed.keys()
    whole = shed.objects[key][0]
    shed.put(key, whole[:20])

    def is_mended() -> bool:
        spool.append(PROGRESS, {"step": 9, "values": {}})
        return shed.objects[key][0] == whole

    wait_until(is_mended)
    postbox.close()
    postbox.join(10)

    assert numbers(shed)[:3] == [1, 2, 3]


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


def test_a_parcel_that_is_cut_anywhere_is_found_out(tmp_path: Path, shed: MemoryObjects) -> None:
    fill(tmp_path, 1, 3)
    bringer = courier(tmp_path, lambda: TimedStore(shed))
    bringer.start()
    bringer.close()
    [whole] = parcels(shed)
    data = whole.dump()

    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            ReportArchive.parse(whole.key, data[:size])
    with pytest.raises(ValueError, match="its sender is 'attempt-1'"):
        ReportArchive.parse(ArchiveKey("attempt-2", 1, 3), data)
    with pytest.raises(ValueError, match="it does not contain the reports 2 to 4"):
        ReportArchive.parse(ArchiveKey("attempt-1", 2, 4), data)
