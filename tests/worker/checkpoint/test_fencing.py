"""Only the newest attempt of a job writes, and late commits of older ones are never used."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import EpochStart, Lineage
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import Store
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.stores import LATER_S, FlakyStore, InterruptedStore, RankGroup, resume, snapshot

COMMITTED, FAILED = ReportKind.CHECKPOINT_COMMITTED, ReportKind.CHECKPOINT_FAILED


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def group(store: Store, spool: Path, epoch: int, **rules: object) -> RankGroup:
    """An attempt with one rank."""
    return RankGroup(store, spool, epoch=epoch, ranks=1, **rules)


def steps(store: Store) -> list[tuple[int, int]]:
    """Step and epoch of all commits, newest first."""
    return [(name.step, name.epoch) for name in CheckpointRepository(store).names(LATER_S)]


def starts(*pairs: tuple[int, int]) -> Lineage:
    return Lineage(frozenset(EpochStart(epoch, step) for epoch, step in pairs))


@pytest.mark.parametrize(
    ("epoch", "step", "cut"),
    [
        (1, 100, None),  # The start of epoch 2.
        (1, 101, 2),  # Beyond it: these steps were repeated.
        (1, 10_000, 2),
        (2, 150, None),
        (2, 151, 5),
        (3, 150, None),  # Epoch 3 has no recorded start.
        (3, 151, 5),
        (5, 10_000, None),  # The newest.
        (6, 10_000, None),
    ],
)
def test_commit_beyond_a_newer_epochs_start_is_off_the_lineage(
    epoch: int, step: int, cut: int | None
) -> None:
    lineage = starts((2, 100), (5, 150))

    found = lineage.superseding_start(CheckpointName(step, epoch, "ab"))

    assert (found and found.epoch) == cut


def test_epoch_with_two_starts_counts_from_the_lower_step() -> None:
    lineage = starts((2, 100), (2, 90))

    assert lineage.superseding_start(CheckpointName(95, 1, "ab"))
    assert not lineage.superseding_start(CheckpointName(90, 1, "ab"))


def test_start_is_redundant_if_a_later_one_cuts_off_as_much() -> None:
    lineage = starts((2, 100), (3, 200), (4, 100), (5, 50))

    assert set(lineage.redundant_starts(EpochStart(6, 100))) == {
        EpochStart(2, 100),
        EpochStart(3, 200),
        EpochStart(4, 100),
    }


def test_start_key_survives_a_round_trip() -> None:
    assert EpochStart.of_key(EpochStart(3, 150).key) == EpochStart(3, 150)
    assert EpochStart.of_key("starts/.draft-ab12-000000000003-000000000150") is None


def test_epochs_count_up_over_gaps(store: DirectoryStore) -> None:
    claims = FencingTokens(store)

    first = claims.acquire_next("aa", LATER_S)
    claims.claim(7, "bb", LATER_S)
    then = claims.acquire_next("cc", LATER_S)

    assert (first, then) == (1, 8)
    assert store.list("claims/") == ["claims/000000000008"]


def test_concurrent_claims_get_distinct_epochs(store: DirectoryStore) -> None:
    claimed: list[int] = []

    def claim(number: int) -> None:
        claimed.append(FencingTokens(store).acquire_next(f"{number:08x}", LATER_S))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(claimed)) == 8


def test_claim_that_is_replaced_during_a_listing_is_repeated(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that appear and disappear while a directory is read may be missing."""
    listings = 0

    def read_late(self: DirectoryStore, prefix: str) -> list[str]:
        nonlocal listings
        listings += 1
        if listings != 2:
            return read(self, prefix)
        FencingTokens(store).claim(9, "bb", LATER_S)  # It lists as well.
        return []

    read = DirectoryStore.list
    monkeypatch.setattr(DirectoryStore, "list", read_late)

    assert FencingTokens(store).acquire_next("aa", LATER_S) == 10


def test_claim_with_a_lost_response_succeeds(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path, loses_answers=True)

    assert FencingTokens(store).acquire_next("aa", LATER_S) == 1


def test_used_epoch_is_not_reused_after_its_claim_is_deleted(store: DirectoryStore) -> None:
    def others() -> None:
        for nonce in ("bb", "cc"):
            FencingTokens(store).acquire_next(nonce, LATER_S)

    slow = InterruptedStore(store, "put_if_absent", "claims/", others)

    assert FencingTokens(slow).acquire_next("aa", LATER_S) == 3


def test_same_epoch_may_restart_but_a_lower_one_is_fenced(
    store: DirectoryStore,
) -> None:
    claims = FencingTokens(store)
    claims.claim(3, "aa", LATER_S)

    claims.claim(3, "bb", LATER_S)

    with pytest.raises(
        FencedOut, match=r"\(epoch 3 in .*\): this attempt, of epoch 2, stops saving"
    ):
        claims.claim(2, "cc", LATER_S)
    claims.check(3, LATER_S)


def test_fenced_attempt_commits_and_reports_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    old = group(store, tmp_path, 1)
    old.save(10)
    resume(store, 2)

    old.save(20)

    assert steps(store) == [(10, 1)]
    assert old.savers[0].fenced.startswith("a newer attempt of this job has taken over (epoch 2")
    assert old.report_bodies(FAILED) == []


def test_wait_for_a_shard_removed_by_the_successor_is_fenced(
    store: DirectoryStore, tmp_path: Path
) -> None:
    old = RankGroup(store, tmp_path, epoch=1, ranks=2)
    resume(store, 2)

    old.savers[0].save(snapshot(20, 0, 2))
    old.savers[0].wait(30)

    assert old.savers[0].fenced
    assert old.report_bodies(FAILED) == []


def test_commit_after_the_successor_began_is_never_used(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """The old attempt checks the claims, the new one claims and starts, the old one commits."""
    group(store, tmp_path, 1).save(10)
    began: list[CheckpointName | None] = []
    late = InterruptedStore(
        store, "put_if_absent", "commits/", lambda: began.append(resume(store, 2).name)
    )

    old = group(late, tmp_path, 1)
    old.save(20)
    third = resume(store, 3)

    assert [(n and n.step) for n in began] == [10]
    assert len(old.report_bodies(COMMITTED)) == 2
    assert steps(store) == [(20, 1), (10, 1)]
    assert third.name
    assert (third.name.step, third.name.epoch) == (10, 1)
    assert third.passed_over == []


def test_late_commit_is_ignored_and_removed_with_its_data(
    store: DirectoryStore, tmp_path: Path
) -> None:
    group(store, tmp_path, 1).save(10)
    second: list[Lineage] = []
    late = InterruptedStore(
        store, "put_if_absent", "commits/", lambda: second.append(resume(store, 2).lineage)
    )
    group(late, tmp_path, 1, keep=2).save(20)

    group(store, tmp_path, 2, keep=2, lineage=second[0]).save(15)

    assert steps(store) == [(15, 2), (10, 1)]
    assert {str(CheckpointName.of_key(key)) for key in store.list("step-")} == {
        "step-15-e2-000000020001",
        "step-10-e1-000000010001",
    }


def test_late_first_commit_is_not_used_after_a_start_at_step_0(
    store: DirectoryStore, tmp_path: Path
) -> None:
    late = InterruptedStore(store, "put_if_absent", "commits/", lambda: resume(store, 2))

    group(late, tmp_path, 1).save(20)

    assert steps(store) == [(20, 1)]
    assert resume(store, 3).name is None


def test_commit_before_the_successor_starts_is_used(store: DirectoryStore, tmp_path: Path) -> None:
    """The commit is later than the claim, but before the start, and therefore valid."""
    late = InterruptedStore(
        store, "put_if_absent", "commits/", lambda: FencingTokens(store).claim(2, "bb", LATER_S)
    )
    group(late, tmp_path, 1).save(20)

    second, third = resume(store, 2), resume(store, 3)

    assert second.name
    assert (second.name.step, second.name.epoch) == (20, 1)
    assert third.name == second.name


def test_superseded_damaged_checkpoint_is_unused_once_repaired(
    store: DirectoryStore, tmp_path: Path
) -> None:
    first = group(store, tmp_path, 1)
    first.save(10)
    first.save(20)
    shard = CheckpointRepository(store).names(LATER_S)[0].part_key(0, 0)
    data = store.get(shard)
    store.put(shard, b"")

    second = resume(store, 2)
    store.put(shard, data)
    third = resume(store, 3)

    assert [second.name and second.name.step, third.name and third.name.step] == [10, 10]
    assert [over.checkpoint for over in second.passed_over] == ["step-20-e1-000000010002"]
    assert third.passed_over == []


def test_newest_epoch_wins_over_a_fenced_attempt_ahead(
    store: DirectoryStore, tmp_path: Path
) -> None:
    group(store, tmp_path, 1).save(10)
    late = InterruptedStore(store, "put_if_absent", "commits/", lambda: resume(store, 2))
    group(late, tmp_path, 1).save(90)
    group(store, tmp_path, 2).save(15)

    third = resume(store, 3)

    assert third.name
    assert (third.name.step, third.name.epoch) == (15, 2)


def test_fenced_attempt_prunes_nothing_of_its_successor(
    store: DirectoryStore, tmp_path: Path
) -> None:
    new = group(store, tmp_path, 2, keep=9)

    def succeed() -> None:
        resume(store, 2)
        for step in (5, 6, 7):
            new.save(step)

    late = InterruptedStore(store, "put_if_absent", "commits/", succeed)
    group(late, tmp_path, 1, keep=2).save(90)

    assert steps(store) == [(90, 1), (7, 2), (6, 2), (5, 2)]


def test_checkpoints_are_listed_again_before_giving_up(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """The old attempt commits again and removes the checkpoint that the new one will read."""
    old = group(store, tmp_path, 1, keep=2)
    old.save(10)
    [only] = CheckpointRepository(store).names(LATER_S)

    def go_on() -> None:
        old.save(20)
        store.delete(only.commit_key)

    restored = resume(InterruptedStore(store, "get", "commits/", go_on), 1)

    assert restored.name
    assert restored.name.step == 20
    assert [over.reason for over in restored.passed_over] == [f"{only.commit_key} is missing"]


@pytest.mark.parametrize(
    "pointer",
    [
        '{"step": 10, "epoch": 7, "nonce": "000000010001"}',
        '{"step": 999, "epoch": 1, "nonce": "000000010001"}',
        '{"step": 10, "epoch": 7, "nonce": "../../00"}',
        '{"step": 10, "epoch": 1e999, "nonce": "00"}',
        '{"step": -10, "epoch": 7, "nonce": "00"}',
        "[" * 100_000,
    ],
)
def test_pointer_without_a_commit_fences_no_attempt(
    store: DirectoryStore, tmp_path: Path, pointer: str
) -> None:
    resume(store, 1)
    placement = group(store, tmp_path, 1)
    placement.save(10)
    store.put("newest.json", pointer.encode())

    listed = steps(store)
    placement.save(20)

    assert listed == [(10, 1)]
    assert steps(store) == [(20, 1), (10, 1)]
    assert not placement.savers[0].fenced
    assert b'"step": 20, "epoch": 1' in store.get("newest.json")


def test_claims_fence_an_attempt_with_a_wrong_pointer(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """The successor claims the job between the check of the claims and the commit."""

    def succeed() -> None:
        resume(store, 2)
        store.put("newest.json", b'{"step": 90, "epoch": 7, "nonce": "00"}')

    late = InterruptedStore(store, "put_if_absent", "commits/", succeed)
    old = group(late, tmp_path, 1)

    old.save(20)

    assert old.savers[0].fenced.startswith("a newer attempt of this job has taken over (epoch 2")
    assert old.report_bodies(COMMITTED) == []
    assert resume(store, 3).name is None


def test_start_of_each_attempt_is_recorded_in_the_store(
    store: DirectoryStore, tmp_path: Path
) -> None:
    resume(store)
    group(store, tmp_path, 1).save(10)
    resume(store)
    resume(store)

    assert sorted(store.list("starts/")) == [
        "starts/000000000001-000000000000",
        "starts/000000000003-000000000010",
    ]
    assert b'"checkpoint": "step-10-e1-' in store.get("starts/000000000003-000000000010")


def test_save_costs_one_listing_besides_its_objects(store: DirectoryStore, tmp_path: Path) -> None:
    asked: list[str] = []

    class Counted(DirectoryStore):
        def list(self, prefix: str) -> list[str]:
            asked.append(prefix)
            return super().list(prefix)

    writer = group(Counted(tmp_path / "store"), tmp_path, 1).savers[0]

    writer.save(snapshot(10, 0, 1))
    writer.wait(30)

    assert asked == ["claims/", "commits/", "step-"]
