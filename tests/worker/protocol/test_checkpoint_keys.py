"""Object keys of a checkpoint store, and the commit summary, which the service also reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.metadata import CommitMetadata
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName, epoch_key, parse_epoch_key
from holdfast_worker.protocol.commit_summary import CommitSummary, MetricValue, commit_digest
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.stores import LATER_S, RankGroup, newest, snapshot

NAME = CheckpointName(150, 2, "9f31c2d40001")


@pytest.mark.parametrize(
    "key",
    [
        NAME.commit_key,
        NAME.data_prefix,
        NAME.part_key(3, 7),
        NAME.record_key(0),
        f"{NAME}/.draft-1-x",
    ],
)
def test_every_object_key_names_its_checkpoint(key: str) -> None:
    assert CheckpointName.of_key(key) == NAME


@pytest.mark.parametrize(
    "text",
    [
        "step-150-e2-9f31c2d40001/",
        "step-0150-e2-9f31c2d40001",
        "step-150",
        "step-5-epoch-1",
        "",
        "a/b",
    ],
)
def test_invalid_checkpoint_name_parses_as_none(text: str) -> None:
    assert CheckpointName.parse(text) is None


def test_checkpoint_name_survives_a_round_trip() -> None:
    assert CheckpointName.parse(str(NAME)) == NAME
    assert parse_epoch_key(epoch_key(12)) == 12
    assert parse_epoch_key("claims/.draft-ab12-000000000003") is None


@pytest.mark.parametrize(
    ("other", "is_behind"),
    [
        (CheckpointName(160, 2, "9f31c2d40002"), True),
        (CheckpointName(150, 2, "9f31c2d40002"), True),
        (CheckpointName(10, 2, "9f31c2d40002"), True),  # The order of the saves counts.
        (CheckpointName(160, 2, "9f31c2d410000"), True),  # The 65,536th.
        (CheckpointName(160, 2, "9f31c2d40001"), False),
        (CheckpointName(160, 2, "9f31c2d50002"), False),  # A different start of the placement.
        (CheckpointName(160, 3, "9f31c2d40002"), False),
    ],
)
def test_later_save_of_the_same_start_supersedes_earlier_ones(
    other: CheckpointName, is_behind: bool
) -> None:
    assert NAME.is_older_save_than(other) is is_behind


def test_commit_summary_holds_size_and_metrics(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    group = RankGroup(store, tmp_path)
    logged = {"loss": MetricValue(0.25, 9), "grad": MetricValue(None, 10)}
    for rank, writer in enumerate(group.savers):
        writer.save(snapshot(10, rank, 2), None, lambda: logged)
    for writer in group.savers:
        writer.wait(30)
    [made] = CheckpointRepository(store).names(LATER_S)

    summary = CommitSummary.of_commit(store.get(made.commit_key))

    assert summary.metrics == logged
    assert summary.size_bytes == sum(len(store.get(key)) for key in store.list("step-"))
    assert CheckpointRepository(store).read_commit(made, LATER_S).metrics == logged


def test_commit_without_metrics_is_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    RankGroup(store, tmp_path).save(10)
    [made] = CheckpointRepository(store).names(LATER_S)
    body = json.loads(store.get(made.commit_key))
    for word in ("metrics", "size_bytes", "sha256"):
        del body[word]

    store.put(made.commit_key, json.dumps({**body, "sha256": commit_digest(body)}).encode())

    assert newest(store) == (10, [])
    assert CommitMetadata.parse(store.get(made.commit_key)).metrics == {}
    with pytest.raises(ValueError, match="cannot be parsed"):
        CommitSummary.of_commit(store.get(made.commit_key))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "cannot be parsed"),
        (b'{"size_bytes": 1, "metrics": {}, "sha256": "00"}', "does not match its digest"),
    ],
)
def test_invalid_commit_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CommitSummary.of_commit(data)
