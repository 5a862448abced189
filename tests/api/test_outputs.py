"""Output files of a job in the API and on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast_worker.node.output_collection import OutputUpload
from holdfast_worker.node.output_selection import OutputSelection
from holdfast_worker.protocol.output_files import OUTPUT_PART_BYTES, OutputCollection
from holdfast_worker.storage.directory import DirectoryStore
from support.events import finished, launched, ready, submitted
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

JOB = "job-1"
LARGE = b"x" * (OUTPUT_PART_BYTES + 5)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store" / JOB)


@pytest.fixture
def service(world: SimulatedService, tmp_path: Path) -> SimulatedService:
    """A job that keeps output files in a directory."""
    checkpoint = {"store": f"file://{tmp_path}/store"}
    world.services.journal.submit(JOB, submitted(checkpoint=checkpoint, outputs=["out/*"]))
    return world


@pytest.fixture
def at_terminal(service: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(service) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def send(
    store: DirectoryStore, tmp_path: Path, epoch: int = 1, node: int = 0, **files: bytes
) -> OutputCollection:
    """Collect files like the worker of a node in an attempt."""
    folder = tmp_path / f"work-{epoch}-{node}"
    (folder / "out").mkdir(parents=True)
    for name, data in files.items():
        (folder / "out" / name).write_bytes(data)
    (folder / "out/etc").symlink_to("/etc/passwd")
    selection = OutputSelection(folder, node=node)
    selection.add(["out/*"])
    upload = OutputUpload(
        store=store,
        selection=selection,
        epoch=epoch,
        nonce="0123abcd",
        until_s=time.monotonic() + 60,
    )
    return upload.send(epoch, 1)


def listed(world: SimulatedService) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{JOB}/outputs")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def rewrite(store: DirectoryStore, sent: OutputCollection, **changes: Any) -> None:
    """Change the list of files, as a job's program could."""
    store.put(sent.commit_key, json.dumps({**json.loads(sent.dump()), **changes}).encode())


def test_files_of_the_newest_attempt_are_listed(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    before = listed(service)
    send(store, tmp_path, 1, a=b"old", z=b"gone")
    send(store, tmp_path, 2, a=b"new", b=b"")

    found = listed(service)

    assert (before["patterns"], before["epoch"], before["files"]) == (["out/*"], None, [])
    assert (found["epoch"], found["attempt"], found["exit_code"], found["size_bytes"]) == (
        2,
        2,
        1,
        3,
    )
    assert [(file["path"], file["size_bytes"], file["parts"]) for file in found["files"]] == [
        ("out/a", 3, 1),
        ("out/b", 0, 0),
    ]
    assert found["left_out"] == [
        {"node": 0, "path": "out/etc", "reason": "is a link that leaves the working directory"}
    ]


def test_file_is_downloaded_whole_and_in_parts(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    send(store, tmp_path, a=LARGE)
    url = f"/v1/jobs/{JOB}/outputs/0"

    whole = service.http.get(url)
    parts = [service.http.get(url, params={"epoch": 1, "part": part}) for part in range(3)]

    assert whole.content == LARGE
    assert whole.headers["content-length"] == str(len(LARGE))
    assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''a"
    assert parts[0].content + parts[1].content == LARGE
    assert (parts[2].status_code, parts[2].json()["detail"]) == (
        404,
        "output file out/a has 2 parts, from number 0",
    )


def test_absent_or_replaced_file_is_a_sentence(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    sent = send(store, tmp_path, 2, a=b"new")
    url = f"/v1/jobs/{JOB}/outputs/0"

    absent = service.http.get(f"/v1/jobs/{JOB}/outputs/7")
    replaced = service.http.get(url, params={"epoch": 1})
    store.put(sent.part_key(sent.files[0], 0), b"too long")
    changed = service.http.get(url)
    store.delete(sent.part_key(sent.files[0], 0))
    deleted = service.http.get(url)

    answers = (absent, replaced, changed, deleted)
    assert [answer.status_code for answer in answers] == [404] * 4
    assert [answer.json()["detail"].partition(";")[0] for answer in answers[:2]] == [
        f"job {JOB} has no output file number 7",
        f"a newer attempt of job {JOB} has replaced its output files",
    ]
    assert all("is not complete in the store" in answer.json()["detail"] for answer in answers[2:])


def test_damaged_list_of_files_is_a_sentence(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    sent = send(store, tmp_path, a=b"new")
    rewrite(store, sent, files=[{**json.loads(sent.dump())["files"][0], "path": "../../a"}])

    answer = service.http.get(f"/v1/jobs/{JOB}/outputs")

    assert answer.status_code == 409
    assert "lists '../../a', which is not a path below a directory" in answer.json()["detail"]


def paths(world: SimulatedService) -> list[str]:
    return [file["path"] for file in listed(world)["files"]]


def test_files_of_other_nodes_are_below_their_names(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    for node in (12, 1, 0):
        send(store, tmp_path, 3, node, a=f"node {node}".encode())

    found = listed(service)
    second = service.http.get(f"/v1/jobs/{JOB}/outputs/1000000", params={"epoch": 3})
    absent = service.http.get(f"/v1/jobs/{JOB}/outputs/2000000")

    assert [(file["node"], file["number"], file["path"]) for file in found["files"]] == [
        (0, 0, "out/a"),
        (1, 1_000_000, "node-1/out/a"),
        (12, 12_000_000, "node-12/out/a"),
    ]
    assert [(left["node"], left["path"]) for left in found["left_out"]] == [
        (0, "out/etc"),
        (1, "node-1/out/etc"),
        (12, "node-12/out/etc"),
    ]
    assert (found["epoch"], found["size_bytes"], found["left_out_count"]) == (3, 6 + 6 + 7, 3)
    assert (second.content, absent.status_code) == (b"node 1", 404)


def test_directory_of_node_0_may_have_the_name_of_a_node(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    """Also on a machine of the client where case does not count."""
    first = send(store, tmp_path, 1, 0, a=b"0", b=b"0")
    send(store, tmp_path, 1, 1, a=b"1")
    raw = json.loads(first.dump())["files"]
    rewrite(store, first, files=[{**raw[0], "path": "Node-1/out/a"}, {**raw[1], "path": "node-1_"}])

    assert paths(service) == ["Node-1/out/a", "node-1_", "node-1__/out/a"]


def test_node_0_replaces_the_files_of_an_attempt(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    """A download of the files before is not cut off by the first of several nodes."""
    first = send(store, tmp_path, 1, 0, a=b"0")
    send(store, tmp_path, 1, 1, a=b"1")
    send(store, tmp_path, 2, 1, a=b"new")
    before = listed(service)
    content = service.http.get(f"/v1/jobs/{JOB}/outputs/0", params={"epoch": 1}).content
    send(store, tmp_path, 2, 0, b=b"new")

    after = listed(service)

    assert (before["epoch"], content) == (1, b"0")
    assert (after["epoch"], paths(service)) == (2, ["out/b", "node-1/out/a"])
    assert not store.list(first.data_prefix)
    assert not [key for key in store.list("outputs/") if "e1-" in key or "0001" in key]


def test_last_attempt_has_the_files_of_the_nodes_left(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    """Node 0 was lost, and no attempt follows."""
    send(store, tmp_path, 1, 1, a=b"1")
    without = paths(service)
    send(store, tmp_path, 1, 0, a=b"0")
    send(store, tmp_path, 2, 1, a=b"1")
    running = paths(service)
    journal = service.services.journal
    journal.append(journal.read(JOB), [launched(), ready(1), finished(2)])

    found = listed(service)

    assert without == ["node-1/out/a"]
    assert running == ["out/a", "node-1/out/a"]
    assert [file["path"] for file in found["files"]] == ["node-1/out/a"]
    assert (found["epoch"], found["attempt"]) == (2, 2)


def test_damaged_list_of_a_node_leaves_out_that_node(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    send(store, tmp_path, 1, 0, a=b"0")
    rewrite(store, send(store, tmp_path, 1, 1, a=b"1"), exit_code=None)
    store.put("outputs/commits/000000000001-n2.json", b" " * ((4 << 20) + 1))
    send(store, tmp_path, 1, 3, a=b"3")

    found = listed(service)

    assert [file["path"] for file in found["files"]] == ["out/a", "node-3/out/a"]
    reasons = {left["path"]: left["reason"] for left in found["left_out"]}
    assert "has a list that cannot be used" in reasons["node-1"]
    assert "is too large" in reasons["node-2"]


def test_lists_of_hostile_nodes_are_bounded(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    """A job's program can write the lists of any number of nodes."""
    send(store, tmp_path, 1, 0, a=b"0")
    sent = send(store, tmp_path, 1, 1, a=b"1")
    file = json.loads(sent.dump())["files"][0]
    files = [{**file, "number": number, "path": f"{number}"} for number in range(1000)]
    content = json.dumps({**json.loads(sent.dump()), "files": files}).encode()
    for node in range(1, 12):
        store.put(replace(sent, node=node).commit_key, content)

    found = listed(service)

    assert len(found["files"]) == 10_000
    assert len(found["left_out"]) == 100
    assert found["left_out_count"] == 1 + 11 + 1001


def test_script_without_a_collector_is_noted(world: SimulatedService) -> None:
    block = "holdfast: {checkpoint: {store: 's3://bucket/p'}, outputs: results/}"
    plain, wrapped = (
        world.submit(f"name: {name}\nresources: {{infra: local}}\nrun: {run}\n{block}\n")
        for name, run in (("plain", "python train.py"), ("wrapped", "holdfast-worker run train.py"))
    )

    noted = ["only holdfast-worker run collects" in " ".join(j["notes"]) for j in (plain, wrapped)]

    assert noted == [True, False]


def test_store_that_the_service_cannot_read_is_named(world: SimulatedService) -> None:
    job = world.submit(
        """
name: tiny
resources: {infra: local}
run: holdfast-worker run train.py
secrets: {AWS_ACCESS_KEY_ID: key}
holdfast: {checkpoint: {store: "s3://bucket/p"}, outputs: results/}
"""
    )

    answer = world.http.get(f"/v1/jobs/{job['id']}/outputs")

    assert any("holdfast.outputs: the keys of the store" in note for note in job["notes"])
    assert answer.status_code == 409
    assert answer.json()["detail"].endswith(f"read them from s3://bucket/p/{job['id']}")


@pytest.mark.parametrize(
    ("block", "pointer", "words"),
    [
        ("outputs: [a]", "#/holdfast/outputs", "add holdfast.checkpoint.store"),
        (
            'outputs: [a, /etc/passwd], checkpoint: {store: "s3://b/p"}',
            "#/holdfast/outputs/1",
            "'/etc/passwd' leaves the working directory",
        ),
    ],
)
def test_mistaken_outputs_are_refused_at_submission(
    world: SimulatedService, block: str, pointer: str, words: str
) -> None:
    task = f"name: t\nresources: {{infra: local}}\nrun: x\nholdfast: {{{block}}}\n"

    answer = world.http.post("/v1/jobs", json={"task": task})

    assert answer.status_code == 422
    [issue] = answer.json()["errors"]
    assert issue["pointer"] == pointer
    assert words in issue["message"]


def test_command_lists_and_downloads_files(
    at_terminal: CliRunner, store: DirectoryStore, tmp_path: Path
) -> None:
    none = at_terminal.invoke(app, ["outputs", JOB])
    send(store, tmp_path, a=LARGE, b=b"")

    shown = at_terminal.invoke(app, ["outputs", JOB])
    target = tmp_path / "target"
    done = at_terminal.invoke(app, ["outputs", JOB, "--download", str(target)])
    as_json = at_terminal.invoke(app, ["outputs", JOB, "--json"])

    assert "holdfast-worker run collects them when an attempt succeeds or fails" in none.output
    assert "out/a" in shown.stdout
    assert "out/etc was left out: it is a link" in shown.output
    assert done.exit_code == 0, done.output
    assert (target / "out/a").read_bytes() == LARGE
    assert sorted(path.name for path in (target / "out").iterdir()) == ["a", "b"]
    assert json.loads(as_json.stdout)["files"][1]["path"] == "out/b"


def test_command_shows_and_downloads_files_of_one_node(
    at_terminal: CliRunner, store: DirectoryStore, tmp_path: Path
) -> None:
    for node in (0, 1):
        send(store, tmp_path, 1, node, a=f"node {node}".encode())
    target, all_of_them = tmp_path / "target", tmp_path / "all"

    shown = at_terminal.invoke(app, ["outputs", JOB])
    of_one = at_terminal.invoke(app, ["outputs", JOB, "--node", "1"])
    at_terminal.invoke(app, ["outputs", JOB, "--node", "1", "--download", str(target)])
    at_terminal.invoke(app, ["outputs", JOB, "--download", str(all_of_them)])

    rows = [line.split() for line in shown.stdout.splitlines()[1:3]]
    assert [(row[0], row[-1]) for row in rows] == [("0", "out/a"), ("1", "node-1/out/a")]
    assert "node-1/out/a" in of_one.stdout
    assert "1 file, 6 B" in of_one.output
    assert "note: out/etc" not in of_one.output
    assert [path.name for path in target.iterdir()] == ["node-1"]
    found = {path: (all_of_them / path).read_text() for path in ("out/a", "node-1/out/a")}
    assert found == {"out/a": "node 0", "node-1/out/a": "node 1"}


def test_download_stays_within_its_directory(
    at_terminal: CliRunner, store: DirectoryStore, tmp_path: Path
) -> None:
    """A job or a service that is not trusted chooses the names of the files."""
    send(store, tmp_path, a=b"evil")
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "out").symlink_to(outside)

    through_link = at_terminal.invoke(app, ["outputs", JOB, "--download", str(target)])

    assert "would be written outside of" in str(through_link.exception)
    assert not [*outside.iterdir()]


def test_damaged_content_is_not_kept(
    at_terminal: CliRunner, store: DirectoryStore, tmp_path: Path
) -> None:
    sent = send(store, tmp_path, a=b"good", b=b"good")
    store.put(sent.part_key(sent.files[1], 0), b"evil")
    target = tmp_path / "target"

    done = at_terminal.invoke(app, ["outputs", JOB, "--download", str(target)])

    assert "out/b is damaged in the store" in str(done.exception)
    assert [path.name for path in (target / "out").iterdir()] == ["a"]


def test_demonstration_reads_no_store(service: SimulatedService) -> None:
    """Its store names may belong to others."""
    service.app.state.services = replace(service.services, open_bucket=None)

    assert listed(service)["files"] == []


def test_removal_with_checkpoints_removes_output_files(
    service: SimulatedService, store: DirectoryStore, tmp_path: Path
) -> None:
    send(store, tmp_path, a=b"x")
    assert service.services.open_bucket
    bucket = service.services.open_bucket(f"file://{tmp_path}/store", JOB, {})

    bucket.delete([stored.key for stored in bucket.list_objects("").objects])

    assert not (tmp_path / "store" / JOB / "outputs").exists()
