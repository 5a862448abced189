"""Uploaded code: pieces, folders, access, quotas, and the launch that receives the code."""

from __future__ import annotations

import cProfile
import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from holdfast.api.routes.code_uploads import put_tree
from holdfast.api.schemas.code_uploads import TreeIn
from holdfast.background.code_retention import delete_expired_code
from holdfast.code_upload.tree import MOST_ENTRIES, PIECE_BYTES
from holdfast.domain.access.permissions import Caller
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch
from support.principals import OWN, create_principals
from support.simulated_service import CODE_BYTES, JOB_FILE, SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SCRIPT = b"print('trained')\n"
NAME = hashlib.sha256(SCRIPT).hexdigest()
FILE = {"path": "src/train.py", "size_bytes": len(SCRIPT), "pieces": [NAME]}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tree(http: TestClient, *entries: dict[str, Any]) -> dict[str, Any]:
    """The response of the service to a folder."""
    answer: dict[str, Any] = http.post("/v1/code/trees", json={"entries": list(entries)}).json()
    return answer


def uploaded_with(http: TestClient, *entries: dict[str, Any]) -> Any:
    """The response to a folder whose names need not be UTF-8.

    The test client would refuse to send such names.
    """
    body = json.dumps({"entries": list(entries)})
    return http.post("/v1/code/trees", content=body, headers={"Content-Type": "application/json"})


def put(http: TestClient, content: bytes) -> int:
    return http.put(f"/v1/code/pieces/{digest(content)}", content=content).status_code


def uploaded(http: TestClient, *entries: dict[str, Any]) -> str:
    """The id of an uploaded folder that holds the script."""
    assert put(http, SCRIPT) == 204
    answer = tree(http, FILE, *entries)
    assert answer["missing"] == []
    return str(answer["id"])


@pytest.fixture
def launched(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches that reach the cloud."""
    seen: list[Launch] = []
    submit = world.cloud.submit

    async def see(launch: Launch) -> None:
        seen.append(launch)
        await submit(launch)

    monkeypatch.setattr(world.cloud, "submit", see)
    return seen


def copied(launch: Launch, target: Path) -> set[str]:
    """The files that a launcher copies from a launch's folder."""
    copy_workdir(Path(launch.task["workdir"]), target, folders=launch.folders)
    return {str(path.relative_to(target)) for path in target.rglob("*")}


def test_uploaded_code_reaches_the_launch(
    world: SimulatedService, launched: list[Launch], tmp_path: Path
) -> None:
    link = {"path": "latest", "link": "src/train.py"}
    code = uploaded(world.http, link, {"path": "out/"}, {**FILE, "path": "go", "is_executable": True})  # fmt: skip

    job = world.submit(f"workdir: ./lost\n{JOB_FILE}", code=code)
    world.until(job["id"], "training")

    assert copied(launched[0], tmp_path / "copy") == {"src", "src/train.py", "latest", "out", "go"}
    assert (tmp_path / "copy" / "latest").read_bytes() == SCRIPT
    assert os.access(tmp_path / "copy" / "go", os.X_OK)
    assert not os.access(tmp_path / "copy" / "src" / "train.py", os.X_OK)


def test_a_confined_launch_may_use_its_own_code_only(
    world: SimulatedService, launched: list[Launch]
) -> None:
    world.until(world.submit(code=uploaded(world.http))["id"], "training")

    [launch] = launched
    folder, confined = Path(launch.task["workdir"]), replace(launch.folders, is_confined=True)

    assert confined.refusal(folder) == ""
    assert "service's own directory" in confined.refusal(folder.with_name("0" * 64))
    assert "service's own directory" in confined.refusal(folder.parent)


def test_a_clone_keeps_the_code_of_its_parent(
    world: SimulatedService, launched: list[Launch]
) -> None:
    job = world.submit(code=uploaded(world.http))

    clone = world.http.post(f"/v1/jobs/{job['id']}/clone").json()
    world.until(clone["id"], "training")

    assert len({launch.task["workdir"] for launch in launched}) == 1


def test_only_missing_pieces_are_requested(world: SimulatedService) -> None:
    big = b"x" * PIECE_BYTES + b"end"
    entry = {"path": "big", "size_bytes": len(big), "pieces": [digest(big[:PIECE_BYTES]), digest(b"end")]}  # fmt: skip
    put(world.http, SCRIPT)

    first = tree(world.http, FILE, entry)
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w") as tar:
        info = tarfile.TarInfo(digest(b"end"))
        info.size = 3
        tar.addfile(info, io.BytesIO(b"end"))
    stored = world.http.post("/v1/code/pieces", content=bundle.getvalue())
    second = tree(world.http, FILE, entry)
    put(world.http, big[:PIECE_BYTES])
    third = tree(world.http, FILE, entry)

    assert set(first["missing"]) == {digest(big[:PIECE_BYTES]), digest(b"end")}
    assert stored.json() == {"stored": 1}
    assert second["missing"] == [digest(big[:PIECE_BYTES])]
    assert third == {"id": first["id"], "missing": []}
    folder = world.services.uploads.folder(world.services.uploads.ref("", third["id"]))
    assert (folder / "big").read_bytes() == big


def test_known_hash_gives_no_access_to_the_file(world: SimulatedService) -> None:
    principals = create_principals(world)
    code = uploaded(principals.person("lead"))
    member = principals.person("member")

    answer = tree(member, FILE)
    taken = member.post("/v1/jobs", json={"task": JOB_FILE, "project": OWN, "code": code})

    assert answer["missing"] == [NAME]
    assert taken.status_code == 422
    assert (
        put(principals.person("viewer"), SCRIPT)
        == put(principals.person("outsider"), SCRIPT)
        == 403
    )


def test_unknown_code_id_is_refused(world: SimulatedService) -> None:
    answer = world.http.post("/v1/jobs", json={"task": JOB_FILE, "code": "0" * 64})

    assert answer.status_code == 422
    assert "uploaded code that the service does not have" in answer.json()["detail"]


WRONG: list[dict[str, Any]] = [
    {"path": "../up"},
    {"path": "/etc/passwd"},
    {"path": "a//b"},
    {"path": "a/./b"},
    {"path": ""},
    {"path": "n\0ul"},
    {"path": "half\ud800"},
    {"path": "n" * 256},
    {"path": "src"},
    {"path": "src/train.py"},
    {"path": "src/train.py/below"},
    {"path": "out", "link": "/etc/passwd"},
    {"path": "out", "link": "../.."},
    {"path": "a/b/c", "link": "../../../up"},
    {"path": "out", "link": ""},
    {"path": "loop", "link": "loop"},
    {"path": "folder/", "link": "src"},
    {"path": "short", "size_bytes": 5},
    {"path": "long", "size_bytes": PIECE_BYTES + 1, "pieces": [NAME]},
]
"""Entries that conflict with the script's path."""


def test_invalid_folder_entries_are_refused(world: SimulatedService) -> None:
    put(world.http, SCRIPT)

    for entry in WRONG:
        answer = uploaded_with(world.http, FILE, entry)

        assert answer.status_code in {400, 422}, (entry, answer.text)
        assert "valid dictionary" not in answer.text, entry
    place = world.services.uploads.folder("upload:owner/x")
    assert not [*place.parent.glob("*")]


def test_chained_symlinks_cannot_leave_the_folder(world: SimulatedService) -> None:
    put(world.http, SCRIPT)
    through = {"path": "x/y/d", "link": "../../src"}
    out = {"path": "x/y/out", "link": "d/../../../etc"}

    answer = world.http.post("/v1/code/trees", json={"entries": [FILE, through, out]})

    assert answer.status_code == 400
    assert "link out of the directory" in answer.json()["detail"]


def test_content_with_a_wrong_hash_is_refused(world: SimulatedService) -> None:
    wrong = world.http.put(f"/v1/code/pieces/{NAME}", content=b"other")
    no_tar = world.http.post("/v1/code/pieces", content=b"no tar")
    large = world.http.put(f"/v1/code/pieces/{NAME}", content=b"x" * (PIECE_BYTES + 1))

    assert (wrong.status_code, no_tar.status_code, large.status_code) == (400, 400, 400)
    assert tree(world.http, FILE)["missing"] == [NAME]


SENTENCES: list[tuple[dict[str, Any], str]] = [
    (
        {"path": "out", "link": "../up"},
        "'out' is a link out of the directory, to '../up'; exclude it",
    ),
    (
        {"path": "h\ud800"},
        "#/entries/1/path: contains half of a surrogate pair, which is not text; remove it",
    ),
    ({"path": "src/train.py"}, "'src/train.py' is listed twice; list it once"),
]
"""Entries that conflict with the script's path, and the response of the service."""


@pytest.mark.parametrize(("entry", "sentence"), SENTENCES)
def test_invalid_entry_is_named_and_other_files_stay(
    world: SimulatedService, entry: dict[str, Any], sentence: str
) -> None:
    code = uploaded(world.http)

    answer = uploaded_with(world.http, FILE, entry)

    assert answer.status_code in {400, 422}
    assert sentence in answer.json()["detail"]
    assert world.submit(code=code)["state"] == "queued"


def test_a_list_in_another_encoding_is_refused(world: SimulatedService) -> None:
    body = '{"entries": [{"path": "\xe9t\xe9"}]}'.encode("latin-1")

    answer = world.http.post(
        "/v1/code/trees", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code in {400, 422}
    assert "UTF-8" in answer.json()["detail"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.SYMTYPE])
def test_a_bundle_with_a_device_or_link_is_refused(world: SimulatedService, kind: bytes) -> None:
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w") as tar:
        good, bad = tarfile.TarInfo(NAME), tarfile.TarInfo("0" * 64)
        good.size, bad.type = len(SCRIPT), kind
        tar.addfile(good, io.BytesIO(SCRIPT))
        tar.addfile(bad)

    answer = world.http.post("/v1/code/pieces", content=bundle.getvalue())

    assert answer.status_code == 400
    assert "is not a regular file" in answer.json()["detail"]
    assert tree(world.http, FILE)["missing"] == [NAME]


def test_too_many_entries_are_refused(world: SimulatedService) -> None:
    entries = [{"path": f"{number}"} for number in range(MOST_ENTRIES + 1)]

    answer = world.http.post("/v1/code/trees", json={"entries": entries})

    assert answer.status_code == 422
    assert "20000" in answer.json()["detail"]


def test_an_entry_takes_few_function_calls(world: SimulatedService) -> None:
    """A list of 20,000 files took half a second of CPU time.

    Function calls are counted because their number is the same on every machine.
    """
    digests = [f"{n:064}" for n in range(1000)]
    entries = [
        {"path": f"src/{n % 10}/{n}.py", "size_bytes": 5, "pieces": [piece]}
        for n, piece in enumerate(digests)
    ]
    uploads, profile = world.services.uploads, cProfile.Profile()

    made = profile.runcall(
        lambda: put_tree(TreeIn.model_validate({"entries": entries}), uploads, Caller())
    )

    calls = sum(entry.callcount for entry in profile.getstats())
    assert made.missing == digests
    assert calls < 60 * len(entries)


def test_upload_over_quota_is_refused_before_sending(world: SimulatedService) -> None:
    pieces = [digest(bytes([n])) for n in range(5)]
    entry = {"path": "data.bin", "size_bytes": 5 * PIECE_BYTES, "pieces": pieces}

    answer = world.http.post("/v1/code/trees", json={"entries": [entry]})
    for n in range(5):
        last = put(world.http, bytes([n]) * PIECE_BYTES)

    assert answer.status_code == last == 409
    assert "HOLDFAST_CODE_MB allows 16.0 MiB" in answer.json()["detail"]


def test_copies_of_one_piece_count_against_the_quota(world: SimulatedService) -> None:
    content = b"x" * (PIECE_BYTES - 1)
    put(world.http, content)
    copies = [
        {"path": f"{n}", "size_bytes": len(content), "pieces": [digest(content)], "is_executable": True}
        for n in range(CODE_BYTES // PIECE_BYTES)
    ]  # fmt: skip

    assert world.http.post("/v1/code/trees", json={"entries": copies}).status_code == 409


def test_unused_code_is_deleted_after_some_days(world: SimulatedService) -> None:
    services = world.services
    code = uploaded(world.http)
    job = world.submit(code=code)
    kept = services.uploads.folder(services.uploads.ref("", code))

    def pass_days(days: float) -> None:
        world.clock.advance(timedelta(days=days).total_seconds())
        delete_expired_code(services.uploads, services.queries, services.journal)

    pass_days(20)
    assert kept.exists()
    world.http.post(f"/v1/jobs/{job['id']}/cancel")
    world.until(job["id"], "cancelled")
    pass_days(13)
    assert kept.exists()
    pass_days(2)
    assert not kept.exists()
    assert tree(world.http, FILE)["missing"] == [NAME]
    assert world.http.post(f"/v1/jobs/{job['id']}/clone").status_code == 422
