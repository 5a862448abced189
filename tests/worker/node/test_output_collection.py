"""Output files of a job: which are selected, and that those of the newest attempt replace others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.node.output_collection import OutputUpload
from holdfast_worker.node.output_selection import OutputLimits, OutputSelection
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.output_files import (
    OUTPUT_COMMITS,
    OUTPUT_PART_BYTES,
    OUTPUTS,
    OutputCollection,
)
from holdfast_worker.storage.base import Bytes, StoreRefused
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.run_driver import TIMEOUT_S, RunDriver

NONCE = "0123abcd"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with output files."""
    made = tmp_path / "work"
    for name in ("results/a.json", "results/b.json", "results/c.txt", "plots/deep/x.png"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    return made


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def selected(
    folder: Path, *patterns: str, limits: OutputLimits = OutputLimits()
) -> OutputSelection:
    selection = OutputSelection(folder, limits)
    selection.add(patterns)
    return selection


def reasons(selection: OutputSelection) -> dict[str, str]:
    return {left.path: left.reason for left in selection.left_out}


def send(store: DirectoryStore, folder: Path, epoch: int, nonce: str = NONCE) -> OutputCollection:
    upload = OutputUpload(
        store=store,
        selection=selected(folder, "results/*.json"),
        epoch=epoch,
        nonce=nonce,
        until_s=time.monotonic() + 60,
    )
    return upload.send(epoch, 0)


def test_patterns_and_directories_select_files_once(folder: Path) -> None:
    selection = selected(folder, "results/*.json", "plots/", "results/a.json", "absent/*")

    assert selection.paths == ["results/a.json", "results/b.json", "plots/deep/x.png"]
    assert not selection.left_out_count


def test_links_out_of_the_working_directory_are_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (folder / "results/d.json").symlink_to("/etc/passwd")
    (folder / "results/e.json").symlink_to(tmp_path / "secret")
    (folder / "results/f.json").symlink_to("a.json")
    (folder / "plots/etc").symlink_to("/etc")
    (folder / "all").symlink_to("/etc")

    selection = selected(folder, "results/*.json", "plots", "all", "all/passwd")

    leaves = "is a link that leaves the working directory"
    assert selection.paths == [
        *("results/a.json", "results/b.json", "results/f.json"),
        "plots/deep/x.png",
    ]
    assert reasons(selection) == {
        "results/d.json": leaves,
        "results/e.json": leaves,
        "all": leaves,
        "all/passwd": leaves,
    }


def test_what_is_no_readable_file_is_left_out(folder: Path) -> None:
    os.mkfifo(folder / "results/pipe.json")
    (folder / "results/gone.json").symlink_to("nowhere")
    (folder / "results/new\nline.json").write_text("x")

    selection = selected(folder, "results/*.json")

    assert selection.paths == ["results/a.json", "results/b.json"]
    assert reasons(selection) == {
        "results/pipe.json": "is not a file",
        "results/gone.json": "cannot be read: No such file or directory",
        "results/new\nline.json": "has a name that other machines cannot create",
    }


def test_path_has_room_for_the_name_of_its_node(folder: Path) -> None:
    """The files of other nodes are below node-N."""
    long = folder.joinpath(*["d" * 200] * 4, "d" * (1024 - 4 * 201 - len("/x")))
    long.mkdir(parents=True)
    (long / "x").write_text("x")
    pattern = "**/x"

    found = [OutputSelection(folder, node=node) for node in (0, 1)]
    for selection in found:
        selection.add([pattern])

    assert [len(selection.paths) for selection in found] == [1, 0]
    [reason] = reasons(found[1]).values()
    assert reason == "has a name that other machines cannot create"


def test_files_beyond_the_limits_are_left_out(folder: Path) -> None:
    many = selected(folder, "results/*", limits=OutputLimits(files=2))
    large = selected(folder, "results/*", limits=OutputLimits(total_bytes=20))

    assert many.paths == ["results/a.json", "results/b.json"]
    assert reasons(many) == {"results/c.txt": "would be more than 2 files"}
    assert large.paths == ["results/a.json"]
    assert large.left_out_count == 2
    assert reasons(large)["results/b.json"] == "would exceed 20 bytes, of which it has 14"


def test_newest_attempt_replaces_the_files_of_earlier_ones(
    folder: Path, store: DirectoryStore
) -> None:
    send(store, folder, 2, "aaaaaaaa")
    (folder / "results/b.json").unlink()
    (folder / "results/a.json").write_bytes(b"x" * (OUTPUT_PART_BYTES + 1))

    sent = send(store, folder, 3)

    assert [file.path for file in sent.files] == ["results/a.json"]
    assert sorted(store.list(OUTPUTS)) == [
        "outputs/commits/000000000003.json",
        *(f"outputs/data/e3-{NONCE}/000000/00000{part}" for part in (0, 1)),
    ]
    assert OutputCollection.parse(store.get(sent.commit_key), 3) == sent


@pytest.mark.parametrize("by", ["claim", "files"])
def test_replaced_attempt_sends_nothing(folder: Path, store: DirectoryStore, by: str) -> None:
    if by == "claim":
        FencingTokens(store).claim(3, NONCE, time.monotonic() + 60)
    else:
        send(store, folder, 3)
    before = sorted(store.list(""))

    with pytest.raises(FencedOut):
        send(store, folder, 2, "aaaaaaaa")

    assert sorted(store.list("")) == before


def test_interrupted_collection_does_not_exist(folder: Path, tmp_path: Path) -> None:
    class FullStore(DirectoryStore):
        def put(self, key: str, data: Bytes) -> None:
            if key.startswith(OUTPUT_COMMITS):
                raise StoreRefused("No space left on device")
            super().put(key, data)

    store = FullStore(tmp_path / "store")

    with pytest.raises(StoreRefused):
        send(store, folder, 2)

    assert not store.list(OUTPUT_COMMITS)


def test_vanished_file_is_left_out(folder: Path, store: DirectoryStore) -> None:
    selection = selected(folder, "results/*.json")
    (folder / "results/a.json").unlink()
    upload = OutputUpload(
        store=store, selection=selection, epoch=1, nonce=NONCE, until_s=time.monotonic() + 60
    )

    sent = upload.send(None, 1)

    assert [file.path for file in sent.files] == ["results/b.json"]
    assert [left.path for left in sent.left_out] == ["results/a.json"]


RUN = "import os, sys; os.chdir(sys.argv[1]); from holdfast_worker.node.launch import launch; sys.exit(launch(sys.argv[2:], [1]))"
"""The wrapper in a working directory."""


@pytest.mark.parametrize(("code", "epoch"), [(0, "1"), (3, "1"), (0, "")])
def test_wrapper_collects_after_success_and_failure(
    folder: Path, tmp_path: Path, code: int, epoch: str
) -> None:
    """Without an epoch from the launcher, the attempt claims one in the store."""
    (folder / "script.py").write_text(f"import sys\nsys.exit({code})\n")
    (folder / "results/etc.json").symlink_to("/etc/passwd")
    extra = {"HOLDFAST_OUTPUTS": '["results/*.json"]', "HOLDFAST_EPOCH": epoch}
    wrapper = RunDriver(tmp_path, extra=extra).start_python(RUN, str(folder), "script.py")

    out, log = wrapper.communicate(timeout=TIMEOUT_S)

    store = DirectoryStore(tmp_path / "store/lesson")
    sent = OutputCollection.parse(store.get("outputs/commits/000000000001.json"), 1)
    assert wrapper.returncode == code
    assert (sent.exit_code, sent.attempt) == (code, 1)
    assert [file.path for file in sent.files] == ["results/a.json", "results/b.json"]
    assert "output file results/etc.json is left out: it is a link that leaves" in out + log


def test_wrapper_refuses_patterns_outside_of_its_directory(folder: Path, tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, extra={"HOLDFAST_OUTPUTS": '["/etc/*"]'})
    wrapper = driver.start_python(RUN, str(folder), "script.py")

    out, log = wrapper.communicate(timeout=TIMEOUT_S)

    assert wrapper.returncode == Exit.USAGE
    assert "HOLDFAST_OUTPUTS: '/etc/*' leaves the working directory" in out + log
