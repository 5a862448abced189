"""Output files of several nodes in real stores, as workers write them and as the service reads them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from holdfast.clock import SystemClock
from holdfast.storage import CheckpointBuckets
from holdfast.submission.output_files import JobOutputs
from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.node.output_collection import OutputUpload
from holdfast_worker.node.output_nodes import CollectingNode, OutputNodes
from holdfast_worker.node.output_selection import OutputSelection
from holdfast_worker.protocol.output_files import OUTPUT_PART_BYTES, OutputCollection
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import Store
from support.cloud_servers import CLOUD_SERVERS, CloudServer
from worker.support.s3_servers import BUCKET, credentials

JOB = "job-1"
LARGE = b"x" * (OUTPUT_PART_BYTES + 5)

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@dataclass(frozen=True)
class BothSides:
    """The store of a job for its workers, and for the service."""

    store: Store
    outputs: JobOutputs

    def contents(self) -> dict[str, bytes]:
        """Content by path, as users download it."""
        found = self.outputs.newest()
        assert found
        return {
            each.path: b"".join(
                self.outputs.parts(*self.outputs.find(each.number, found.first.epoch))
            )
            for each in found.files
        }


def both(url: str, envs: Mapping[str, str]) -> BothSides:
    bucket = CheckpointBuckets(SystemClock()).open(url, JOB, envs)
    return BothSides(open_store(url, JOB, os.environ), JobOutputs(JOB, bucket, has_ended=False))


@pytest.fixture(
    params=[
        "directory",
        "rclone",
        "moto",
        "google",
        "azure",
        pytest.param("azurite", marks=pytest.mark.full),
    ]
)
def sides(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BothSides:
    if request.param == "directory":
        return both(f"file://{tmp_path}/store", {})
    if request.param in CLOUD_SERVERS:
        server: CloudServer = request.getfixturevalue(request.param)
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        return both(f"{server.scheme}://{BUCKET}/{tmp_path.name}", server.variables)
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    envs = {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    return both(f"s3://{BUCKET}/{tmp_path.name}", envs)


def send(store: Store, folder: Path, node: int, epoch: int) -> OutputCollection:
    """Collect files like the worker of a node."""
    selection = OutputSelection(folder, node=node)
    selection.add(["*"])
    until_s = time.monotonic() + 120
    nodes = OutputNodes(
        store=store,
        place=CollectingNode(node=node, nodes=3, run="one"),
        until_s=until_s,
        epoch=epoch,
    )
    nodes.begin()
    nodes.share(selection)
    upload = OutputUpload(
        store=store, selection=selection, epoch=epoch, nonce=f"{epoch:08x}", until_s=until_s
    )
    sent = upload.send(epoch, 0)
    nodes.end()
    return sent


def folder_of(path: Path, **files: bytes) -> Path:
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def test_newest_files_of_all_nodes_are_read_back(sides: BothSides, tmp_path: Path) -> None:
    own = [folder_of(tmp_path / f"n{node}", a=f"old {node}".encode()) for node in (0, 1)]
    for node, folder in enumerate(own):
        send(sides.store, folder, node, 1)
    before = sides.contents()
    folder_of(own[0], a=b"new 0", empty=b"")
    folder_of(own[1], large=LARGE)
    for node, folder in enumerate(own):
        send(sides.store, folder, node, 2)

    after = sides.contents()

    assert before == {"a": b"old 0", "node-1/a": b"old 1"}
    assert after == {"a": b"new 0", "empty": b"", "node-1/a": b"old 1", "node-1/large": LARGE}
    keys = sides.store.list("outputs/")
    assert all("000000000002" in key or "e2-" in key for key in keys), keys


def test_shared_files_are_sent_once(sides: BothSides, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "work", a=b"a", b=b"b")
    send(sides.store, folder, 0, 1)
    folder_of(folder, late=b"late")

    of_others = [send(sides.store, folder, node, 1) for node in (1, 2)]

    assert [len(each.files) for each in of_others] == [1, 0]
    assert sides.contents() == {"a": b"a", "b": b"b", "node-1/late": b"late"}


def test_replaced_attempt_replaces_nothing(sides: BothSides, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "work", a=b"new")
    send(sides.store, folder, 0, 2)
    FencingTokens(sides.store).claim(3, "0123abcd", time.monotonic() + 60)

    with pytest.raises(FencedOut):
        send(sides.store, folder_of(tmp_path / "old", a=b"old"), 1, 2)

    assert sides.contents() == {"a": b"new"}
