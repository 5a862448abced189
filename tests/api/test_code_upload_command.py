"""`holdfast submit` from another machine uploads the folder once, and only usable files."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.errors import BadRequest, HoldfastError
from starlette.types import Receive, Scope, Send
from support.simulated_service import CODE_BYTES, JOB_FILE, SimulatedService, served
from typer.testing import CliRunner

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class RecordingProxy:
    """A proxy to the service that records requests and drops the connection once."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app
        self.sent: list[str] = []
        self.drops_next = False
        self.on_code: Callable[[], object] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith("/v1/code"):
            self.on_code()
        if path.startswith("/v1/code/pieces"):
            self.sent.append(path)
            if self.drops_next:
                self.drops_next = False
                head = [(b"content-length", b"9")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                return  # The server closes a connection whose response is incomplete.
        await self.app(scope, receive, send)


@pytest.fixture
def proxy(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProxy]:
    proxy = RecordingProxy(world.app)
    with served(world, proxy) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield proxy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the command."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "code" / "net.py").write_text("net = None\n")
    (tmp_path / "job.yaml").write_text(f"workdir: ./code\n{JOB_FILE}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(*more: str) -> Any:
    return CliRunner().invoke(app, ["submit", "job.yaml", *more])


def received_folders(world: SimulatedService) -> list[Path]:
    """The folders that the service has received."""
    return [*(Path(world.services.uploads.folder("upload:owner/x")).parent).glob("*")]


def test_a_folder_is_uploaded_and_submitted_once(
    world: SimulatedService, proxy: RecordingProxy, folder: Path
) -> None:
    first = submit("--upload")
    (folder / "code" / "net.py").write_text("net = 2\n")
    second = submit("--upload")
    again = submit("--upload")

    assert (first.exit_code, second.exit_code, again.exit_code) == (0, 0, 0), first.stderr
    assert "2 files, 20 bytes; 20 bytes to upload" in first.stderr
    assert "8 bytes to upload" in second.stderr
    assert "; 0 bytes to upload" in again.stderr
    assert len(proxy.sent) == 2
    assert sorted((tree / "net.py").read_text() for tree in received_folders(world)) == ["net = 2\n", "net = None\n"]  # fmt: skip
    specs = [world.services.journal.submission(job["id"]).spec for job in world.http.get("/v1/jobs").json()["jobs"]]  # fmt: skip
    assert all(spec["workdir"].startswith("upload:owner/") for spec in specs)


def test_an_upload_is_resumed_after_a_broken_connection(
    world: SimulatedService, proxy: RecordingProxy, folder: Path
) -> None:
    proxy.drops_next = True

    done = submit("--upload")

    assert done.exit_code == 0, done.stderr
    assert len(proxy.sent) == 2
    assert len(received_folders(world)) == 1


def test_constantly_changing_file_is_named(
    world: SimulatedService, proxy: RecordingProxy, folder: Path
) -> None:
    log, numbers = folder / "code" / "z.log", itertools.count()
    log.write_text("begin")
    proxy.on_code = lambda: log.write_text(str(next(numbers)))

    done = submit("--upload")

    assert isinstance(done.exception, BadRequest)
    assert "'z.log' changes during the upload" in done.exception.detail
    assert world.http.get("/v1/jobs").json()["total"] == 0


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "too large": (
        lambda code: (code / "w.bin").write_bytes(os.urandom(CODE_BYTES)),
        "HOLDFAST_CODE_MB allows 16.0 MiB; exclude files with .gitignore",
    ),
    "link out": (
        lambda code: (code / "out").symlink_to("/etc/passwd"),
        "'out' is a link out of the directory, to '/etc/passwd'",
    ),
    "not UTF-8": (
        lambda code: (code / os.fsdecode(b"\xe9")).write_text(""),
        "is not UTF-8; rename it, or exclude it with .gitignore",
    ),
}
"""Defects of a folder, each with the expected message."""


@pytest.mark.parametrize("what", BAD)
def test_unusable_folder_is_refused_before_upload(
    world: SimulatedService, proxy: RecordingProxy, folder: Path, what: str
) -> None:
    assert submit("--upload").exit_code == 0
    before, sent = received_folders(world), len(proxy.sent)
    spoil, sentence = BAD[what]
    spoil(folder / "code")

    done = submit("--upload")

    assert isinstance(done.exception, HoldfastError)
    assert done.exception.exit_code in {2, 6}
    assert sentence in done.exception.detail
    assert (received_folders(world), len(proxy.sent)) == (before, sent)
    assert world.http.get("/v1/jobs").json()["total"] == 1


def test_a_socket_is_left_out_with_a_note(
    world: SimulatedService, proxy: RecordingProxy, folder: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "code" / "s.sock"))

    done = submit("--upload")

    assert done.exit_code == 0, done.stderr
    assert "note: 's.sock' is a socket, and is not uploaded" in done.stderr
    assert [path.name for path in received_folders(world)[0].glob("*.sock")] == []


MOUNT = f"workdir: ./code\nfile_mounts: {{/data: SOURCE}}\n{JOB_FILE}".replace("local", "aws")


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("./nope", True),
        ("~/data", True),
        ("HERE/code", True),
        ("{source: ./code, mode: COPY}", True),
        ("{source: [./code], name: b}", True),
        ("/srv/only-there", False),
        ("s3://bucket/prefix", False),
        ("{name: bucket}", False),
    ],
)
def test_local_mount_is_refused_with_its_field(
    world: SimulatedService, proxy: RecordingProxy, folder: Path, source: str, is_refused: bool
) -> None:
    (folder / "job.yaml").write_text(MOUNT.replace("SOURCE", source.replace("HERE", str(folder))))

    sent = submit("--upload")
    kept = submit("--no-upload")

    detail = getattr(sent.exception, "detail", "")
    assert ("#/file_mounts//data: " in detail) == is_refused
    assert ("is a path of this machine, and only workdir is uploaded" in detail) == is_refused
    assert bool(proxy.sent) != is_refused
    assert "is a path of this machine" not in getattr(kept.exception, "detail", "")


@pytest.mark.parametrize("options", [[], ["--upload"]])
def test_missing_folder_is_refused(
    world: SimulatedService, proxy: RecordingProxy, folder: Path, options: list[str]
) -> None:
    (folder / "job.yaml").write_text(f"workdir: ./nope\n{JOB_FILE}")

    done = submit(*options)

    assert isinstance(done.exception, BadRequest)
    assert f"the directory {folder}/nope does not exist" in done.exception.detail
    assert world.http.get("/v1/jobs").json()["total"] == 0


def test_no_upload_option_sends_no_files(proxy: RecordingProxy, folder: Path) -> None:
    (folder / "job.yaml").write_text(f"workdir: {folder}\n{JOB_FILE}")

    assert submit("--no-upload").exit_code == 0
    assert proxy.sent == []
