"""Backups: complete tables of one time, rejected if damaged, and restored without loss."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from holdfast.domain.access.audit import BACKUP
from holdfast.errors import BadRequest, HoldfastError, NotPossibleNow, StoreUnavailable
from holdfast.host.home_lock import restoring_over, serving_over
from holdfast.server import backup
from holdfast.settings import Settings
from holdfast.store import backups
from holdfast.store.audit_log import AuditLog
from holdfast.store.database import (
    downgrade,
    newest_revision,
    open_database,
    reading,
    revision_of,
)
from holdfast.store.journal import Journal
from holdfast.store.tables.base import metadata
from sqlalchemy import Engine, select
from support.events import launched, ready, submitted
from support.fakes import FixedClock
from support.postgres import Cluster

SECRET = "5e" * 32
OpenEngine = Callable[[str], Engine]


def home(folder: Path, url: str | None = None, secret: str = SECRET) -> Settings:
    """The settings of a service with a home folder and its secret."""
    folder.mkdir(exist_ok=True)
    if secret:
        (folder / "secret").write_text(secret)
    return Settings(home=folder, database_url=url)


def filled(engine: Engine, jobs: int = 2) -> Journal:
    """A database with some jobs."""
    journal = Journal(engine, FixedClock())
    for number in range(jobs):
        journal.append(journal.submit(f"job-{number}", submitted()), [launched(1), ready(2)])
    return journal


def rows(url: str) -> dict[str, list[Any]]:
    """All rows of a database."""
    engine = open_database(url)
    with reading(engine) as connection:
        found = {
            name: sorted(map(repr, connection.execute(select(table))))
            for name, table in metadata.tables.items()
        }
    engine.dispose()
    return found


@pytest.fixture
def made(sqlite: Engine, tmp_path: Path) -> tuple[Settings, Path]:
    """A service with two jobs, and a backup of it."""
    settings = home(tmp_path / "home", sqlite.url.render_as_string())
    filled(sqlite)
    sqlite.dispose()
    file = tmp_path / "kept.backup"
    backup.back_up(settings, file, with_secret=True)
    return settings, file


def test_both_kinds_of_database_restore_either_backup(
    engine: Engine, database_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    source = home(tmp_path / "source", database_url)
    targets = [
        home(tmp_path / "one", secret=""),
        home(tmp_path / "two", cluster.new_database(), secret=""),
    ]
    filled(engine)
    engine.dispose()
    file = tmp_path / "kept.backup"
    before = rows(database_url)

    manifest = backup.back_up(source, file, with_secret=True)
    for target in targets:
        backup.restore(target, file, force=False)

    assert file.stat().st_mode & 0o777 == 0o600
    omitted = {"code_pieces", "code_trees"}
    assert set(manifest.rows) == set(metadata.tables) - omitted
    for target in targets:
        assert rows(target.sqlalchemy_url) == before
        assert target.own_secret_file.read_text() == SECRET
        assert target.own_secret_file.stat().st_mode & 0o777 == 0o600
    assert manifest.rows["job_events"] == 6


def test_complete_backups_are_in_the_audit_log(
    made: tuple[Settings, Path], tmp_path: Path, open_engine: OpenEngine
) -> None:
    settings, _ = made
    with pytest.raises(BadRequest):
        backup.back_up(settings, tmp_path / "missing" / "file", with_secret=True)

    audit = AuditLog(open_engine(settings.sqlalchemy_url), FixedClock())

    (entry,) = audit.page(limit=10, actor=BACKUP.name)
    assert entry.audit_action.action == "db.backup"
    assert entry.audit_action.after is not None
    assert entry.audit_action.after["rows"] > 0
    assert audit.newest_at(BACKUP.name) == entry.at
    assert audit.newest_at("nobody-else") is None
    assert audit.verify().problem == ""


def test_a_backup_during_writes_holds_one_moment(engine: Engine, database_url: str, tmp_path: Path, open_engine: OpenEngine) -> None:  # fmt: skip
    settings = home(tmp_path / "home", database_url)
    journal, file = filled(engine), tmp_path / "kept.backup"

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            lambda: [journal.submit(f"more-{number}", submitted()) for number in range(40)]
        )
        backup.back_up(settings, file, with_secret=True)
        writing.result()
    target = home(tmp_path / "target", secret="")
    backup.restore(target, file, force=False)

    restored = open_engine(target.sqlalchemy_url)
    with reading(restored) as connection:
        ids = [row.id for row in connection.execute(select(metadata.tables["jobs"]))]
    assert {"job-0", "job-1"} <= set(ids)
    assert not [job for job in ids if Journal(restored, FixedClock()).is_inconsistent(job)]


@pytest.mark.parametrize("kept", [0, 1, 100, -1, -30, -600])
def test_a_truncated_backup_is_refused_and_changes_nothing(
    made: tuple[Settings, Path], kept: int
) -> None:
    settings, file = made
    file.write_bytes(file.read_bytes()[:kept])
    before = rows(settings.sqlalchemy_url)

    with pytest.raises(BadRequest, match=r"not a complete backup .*; nothing was changed"):
        backup.restore(settings, file, force=True)

    assert rows(settings.sqlalchemy_url) == before


def test_a_folder_in_place_of_a_backup_is_refused(made: tuple[Settings, Path]) -> None:
    settings, file = made

    with pytest.raises(BadRequest, match="cannot be read: Is a directory; name the file of a"):
        backup.restore(settings, file.parent, force=True)


def test_a_changed_byte_is_refused_or_harmless(made: tuple[Settings, Path]) -> None:
    _, file = made
    whole = file.read_bytes()
    with ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    refused = 0
    for place in range(0, len(whole), max(1, len(whole) // 300)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            with backups.open_backup(file, "1") as read:
                found = {name: read.archive.read(name) for name in read.archive.namelist()}
        except BadRequest:
            refused += 1
        else:
            assert found == members

    assert refused > 150


def test_a_backup_of_a_newer_version_is_refused_with_both(made: tuple[Settings, Path]) -> None:
    settings, file = made
    with ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    newer = manifest | {"version": "9.9.9", "revision": "9999"}
    with ZipFile(file, "w") as archive:
        for name, content in (members | {"manifest.json": json.dumps(newer).encode()}).items():
            archive.writestr(name, content)

    with pytest.raises(BadRequest, match=rf"9\.9\.9 .*revision 9999.*up to {newest_revision()}"):
        backup.restore(settings, file, force=True)


def test_an_older_backup_is_restored_and_migrated(
    sqlite: Engine, tmp_path: Path, open_engine: OpenEngine
) -> None:
    settings, target = home(tmp_path / "h", str(sqlite.url)), home(tmp_path / "new", secret="")
    filled(sqlite)
    downgrade(sqlite, "0015")
    sqlite.dispose()
    file = tmp_path / "kept.backup"

    manifest = backup.back_up(settings, file, with_secret=True)
    backup.restore(target, file, force=False)

    restored = open_engine(target.sqlalchemy_url)
    assert manifest.revision == "0015"
    assert revision_of(restored) == newest_revision()
    assert Journal(restored, FixedClock()).read("job-1").attempt == 1


def test_a_database_with_tables_is_replaced_only_by_force(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    settings = home(tmp_path / "home", database_url)
    file = tmp_path / "kept.backup"
    journal = filled(engine)
    first = rows(database_url)
    backup.back_up(settings, file, with_secret=True)
    journal.submit("later", submitted())
    engine.dispose()
    second = rows(database_url)

    with pytest.raises(NotPossibleNow, match="is not empty; --force moves it aside"):
        backup.restore(settings, file, force=False)
    unchanged = rows(database_url)
    done = backup.restore(settings, file, force=True)

    assert unchanged == second
    assert rows(database_url) == first
    [aside] = done.aside
    if aside.suffix == ".backup":
        other = home(tmp_path / "other")
        backup.restore(other, aside, force=False)
        assert rows(other.sqlalchemy_url) == second
    else:
        assert rows(f"sqlite:///{aside}") == second


def test_a_restore_and_a_service_exclude_each_other(made: tuple[Settings, Path]) -> None:
    settings, file = made

    in_use = pytest.raises(NotPossibleNow, match=r"a service is running .*; stop it")
    under_way = pytest.raises(StoreUnavailable, match=r"a restore .* is running")

    with serving_over(settings), serving_over(settings), in_use:
        backup.restore(settings, file, force=True)
    with restoring_over(settings), under_way, serving_over(settings):
        pass
    backup.restore(settings, file, force=True)


def test_connections_of_another_machine_stop_a_restore(
    cluster: Cluster, made: tuple[Settings, Path], tmp_path: Path, open_engine: OpenEngine
) -> None:
    _, file = made
    settings = home(tmp_path / "elsewhere", cluster.new_database())

    with reading(open_engine(settings.sqlalchemy_url)) as connection:
        connection.execute(select(1))
        with pytest.raises(NotPossibleNow, match=r"1 other connections .* stop all services"):
            backup.restore(settings, file, force=True)


def test_a_backup_without_the_secret_needs_the_right_one(
    made: tuple[Settings, Path], tmp_path: Path
) -> None:
    settings, file = made
    before = rows(settings.sqlalchemy_url)
    backup.back_up(settings, file, with_secret=False)

    refusals = []
    for target in (home(tmp_path / "none", secret=""), home(tmp_path / "wrong", secret="00")):
        with pytest.raises(HoldfastError) as refusal:
            backup.restore(target, file, force=False)
        refusals.append(refusal.value.detail)
    right = home(tmp_path / "right")
    backup.restore(right, file, force=False)

    assert "the backup has no secret" in refusals[0]
    assert "is not the secret of the backup" in refusals[1]
    with ZipFile(file) as archive:
        assert "secret" not in archive.namelist()
    assert rows(right.sqlalchemy_url) == before


def test_another_secret_is_replaced_by_force_and_kept(
    made: tuple[Settings, Path], tmp_path: Path
) -> None:
    _, file = made
    target = home(tmp_path / "wrong", secret="00")

    [aside] = backup.restore(target, file, force=True).aside

    assert (target.own_secret_file.read_text(), aside.read_text()) == (SECRET, "00")


def test_all_tables_are_known_with_only_backup_imported() -> None:
    code = "import holdfast.store.backups; from holdfast.store.tables.base import metadata; print(*sorted(metadata.tables))"

    known = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()  # fmt: skip

    assert known == sorted(metadata.tables)
    assert {"jobs", "job_events", "audit", "ledgers"} <= {*known}


def test_backup_with_fewer_rows_than_it_states_is_refused(made: tuple[Settings, Path]) -> None:
    _, file = made
    with ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(file, "w") as archive:
        for name, data in members.items():
            lines = data.splitlines(keepends=True)
            is_cut = name == "tables/job_events.jsonl"
            archive.writestr(name, b"".join(lines[:-1]) if is_cut else data)

    with pytest.raises(BadRequest, match="rows of job_events are missing"), backups.open_backup(file, "1"):  # fmt: skip
        pass
