"""Code in the database: each replica has it, none loses it, and limits and owners are kept apart."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast.code_upload.shared_uploads import SharedUploads
from holdfast.code_upload.tree import PIECE_BYTES, TreeEntry
from holdfast.code_upload.upload_store import Tree, UploadLimits
from holdfast.errors import BadRequest, NotPossibleNow
from holdfast.store.code import CodeTable
from sqlalchemy import Engine
from support.fakes import FixedClock

SCRIPT = b"print('trained')\n"
LONG = bytes(PIECE_BYTES) + b"end"
ENTRIES = (
    TreeEntry(path="empty/"),
    TreeEntry(path="latest", link="src/train.py"),
    TreeEntry(
        path="src/train.py",
        size_bytes=len(SCRIPT),
        pieces=(hashlib.sha256(SCRIPT).hexdigest(),),
        is_executable=True,
    ),
    TreeEntry(
        path="weights",
        size_bytes=len(LONG),
        pieces=(
            hashlib.sha256(LONG[:PIECE_BYTES]).hexdigest(),
            hashlib.sha256(b"end").hexdigest(),
        ),
    ),
)
PIECES = [(hashlib.sha256(one).hexdigest(), one) for one in (SCRIPT, LONG[:PIECE_BYTES], b"end")]
DAY_S = 86_400
LIMITS = UploadLimits(most_bytes=9 * 2**20, most_total_bytes=12 * 2**20, days=14)
Replica = Callable[[str], SharedUploads]


@pytest.fixture
def replica(engine: Engine, clock: FixedClock, tmp_path: Path) -> Replica:
    """Open a replica with its own home directory."""
    return lambda name: SharedUploads(tmp_path / name, clock, CodeTable(engine), LIMITS)


def uploaded(replica: SharedUploads, user: str = "ada") -> str:
    """Upload the code; return the `workdir` of its job."""
    replica.add_pieces(user, PIECES)
    tree = replica.add_tree(user, ENTRIES)
    assert tree.missing == ()
    return replica.ref(user, tree.id)


def assert_whole(folder: Path | None) -> None:
    assert folder
    assert (folder / "src/train.py").read_bytes() == SCRIPT
    assert (folder / "src/train.py").stat().st_mode & 0o111
    assert (folder / "weights").read_bytes() == LONG
    assert (folder / "latest").readlink() == Path("src/train.py")
    assert (folder / "empty").is_dir()


def test_each_replica_launches_what_another_received(replica: Replica) -> None:
    """Pieces, directory and launch reach one replica each, as behind a load balancer."""
    replica("a").add_pieces("ada", PIECES[:1])
    replica("b").add_pieces("ada", PIECES[1:])
    tree = replica("a").add_tree("ada", ENTRIES)

    workdir = replica("b").ref("ada", tree.id)

    assert replica("b").mark_used(workdir)
    assert_whole(replica("b").folder(workdir))


def test_code_survives_the_loss_of_every_home(replica: Replica, tmp_path: Path) -> None:
    workdir = uploaded(replica("a"))
    shutil.rmtree(tmp_path / "a")

    assert_whole(replica("a").folder(workdir))


def test_missing_pieces_are_named_and_only_those(replica: Replica) -> None:
    replica("a").add_pieces("ada", PIECES[:2])

    tree = replica("b").add_tree("ada", ENTRIES)

    assert tree.missing == (PIECES[2][0],)


def test_code_of_another_owner_is_not_shared(replica: Replica) -> None:
    uploaded(replica("a"), "ada")

    tree = replica("a").add_tree("bob", ENTRIES)

    assert set(tree.missing) == {digest for digest, _ in PIECES}
    assert not replica("a").mark_used(replica("a").ref("bob", tree.id))


def test_wrong_content_and_links_are_refused(replica: Replica, engine: Engine) -> None:
    link = TreeEntry(path="out", link="empty/../../elsewhere")

    with pytest.raises(BadRequest, match="does not match"):
        replica("a").add_pieces("ada", [("0" * 64, b"other")])
    with pytest.raises(BadRequest, match="link out of the directory"):
        replica("a").add_tree("ada", [TreeEntry(path="empty/"), link])

    assert CodeTable(engine).usage() == {}


def test_limits_count_the_code_of_all_replicas(replica: Replica) -> None:
    uploaded(replica("a"), "ada")
    more = bytes(range(256)) * (5 * 2**20 // 256)
    piece = (hashlib.sha256(more).hexdigest(), more)

    with pytest.raises(NotPossibleNow, match=r"HOLDFAST_CODE_MB allows 9.0 MiB"):
        replica("b").add_pieces("ada", [piece])
    replica("b").add_pieces("bob", [piece])
    with pytest.raises(NotPossibleNow, match=r"HOLDFAST_CODE_TOTAL_MB allows 12.0 MiB"):
        replica("b").add_pieces("eve", [piece])


def test_repeated_upload_stores_nothing_twice(replica: Replica, engine: Engine) -> None:
    workdir = uploaded(replica("a"))
    before = dict(CodeTable(engine).usage())

    assert uploaded(replica("b")) == workdir
    assert CodeTable(engine).usage() == before


def test_unused_code_is_deleted_and_that_of_jobs_stays(
    replica: Replica, engine: Engine, clock: FixedClock, tmp_path: Path
) -> None:
    workdir = uploaded(replica("a"), "ada")
    uploaded(replica("a"), "bob")
    replica("a").add_pieces("eve", [PIECES[0]])

    clock.advance(15 * DAY_S)
    replica("b").delete_expired([workdir])
    replica("a").delete_expired([workdir])

    shutil.rmtree(tmp_path / "a")
    assert_whole(replica("a").folder(workdir))
    assert len(CodeTable(engine).usage()) == 1
    assert uploaded_again(replica("a"), "bob").missing


def uploaded_again(replica: SharedUploads, user: str) -> Tree:
    return replica.add_tree(user, ENTRIES)


def test_deleted_code_is_not_launched(replica: Replica, clock: FixedClock) -> None:
    workdir = uploaded(replica("a"))

    clock.advance(15 * DAY_S)
    replica("a").delete_expired([])

    assert not replica("a").mark_used(workdir)
    folder = replica("a").folder(workdir)
    assert folder
    assert not folder.exists()
