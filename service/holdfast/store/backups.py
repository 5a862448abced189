"""Backups: all tables of one moment in one file, for both kinds of database.

The file is a zip archive: `manifest.json`, `secret` unless it is omitted, and `tables/NAME.jsonl`
with the names of the columns in the first line and a row in each of the others. Times are UTC.
Columns of JSON keep their text.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from sqlalchemy import (
    JSON,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    insert,
    inspect,
    select,
)

from holdfast.errors import BadRequest
from holdfast.store import database
from holdfast.store.tables.base import metadata

FORMAT: Final = 1
_BATCH: Final = 1000
_MANIFEST: Final = "manifest.json"
_SECRET: Final = "secret"  # noqa: S105 - the name of a member
_DAMAGE: Final = (BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError, OSError, NotImplementedError, RuntimeError)  # fmt: skip
"""Exceptions raised for a damaged archive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupManifest:
    """The description of a backup."""

    format: int
    version: str
    """The version of Holdfast that made it."""
    revision: str
    made_at: str
    rows: Mapping[str, int]
    """By table."""
    secret_sha256: str
    """Of the service's secret, also if the backup omits it."""


def write(
    file: Path, engine: Engine, secret: bytes, *, version: str, now: datetime, with_secret: bool
) -> BackupManifest:
    """Write a backup of the database at one moment.

    An existing file of this name stays until the new one is complete.

    Raises:
        BadRequest: the database has no tables, or a newer version made them; or the file cannot be
            written.
        StoreUnavailable: the database is unavailable.
    """
    draft = file.with_name(f".{file.name}.{token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as raw:
            with ZipFile(raw, "w", ZIP_DEFLATED) as archive, database.exporting(engine) as source:
                revision = _known_revision(source)
                tables = _tables(source)
                rows = {table.name: _write_table(archive, source, table) for table in tables}
                manifest = BackupManifest(
                    format=FORMAT,
                    version=version,
                    revision=revision,
                    made_at=now.isoformat(timespec="seconds"),
                    rows=rows,
                    secret_sha256=sha256(secret).hexdigest(),
                )
                if with_secret:
                    archive.writestr(_SECRET, secret)
                archive.writestr(_MANIFEST, json.dumps(asdict(manifest), indent=1))
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(file)
    except OSError as error:
        raise BadRequest(
            f"{file} cannot be written: {error.strerror}; name another file"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was read completely and is undamaged."""

    archive: ZipFile
    manifest: BackupManifest
    secret: bytes | None
    """None: omitted."""

    def restore(self, engine: Engine) -> None:
        """Fill an empty database with the tables of the backup and migrate them to this version.

        On an error, the database stays unchanged.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        with database.migrating(engine) as connection:
            self.restore_into(connection)

    def restore_into(self, connection: Connection) -> None:
        """Restore the backup inside a transaction."""
        database.upgrade_to(connection, self.manifest.revision)
        for table in _tables(connection):
            if table.name in self.manifest.rows:
                self._fill(connection, table)
        database.upgrade_to(connection, "head")

    def _fill(self, connection: Connection, table: Table) -> None:
        # Migrations may have inserted rows, which the backup also contains.
        connection.execute(table.delete())
        with self.archive.open(_member(table.name)) as raw:
            lines = iter(TextIOWrapper(raw, "utf-8"))
            names = json.loads(next(lines))
            statement = insert(table).values(
                {name: _bound(connection, table, name) for name in names}
            )
            while rows := [_read_row(names, line) for line in islice(lines, _BATCH)]:
                connection.execute(statement, rows)


@contextmanager
def open_backup(file: Path, version: str) -> Iterator[Backup]:
    """Open a backup after all of it was read and every checksum compared.

    Raises:
        BadRequest: it cannot be read, is damaged, or a newer version made it.
    """
    try:
        with ZipFile(file) as archive:
            backup = _checked(file, archive)
            newest = database.newest_revision()
            if backup.manifest.format > FORMAT or not database.is_known(backup.manifest.revision):
                raise BadRequest(
                    f"{file} was made by Holdfast {backup.manifest.version} (tables at revision {backup.manifest.revision}), and "
                    f"this is {version}, which knows revisions up to {newest}; install {backup.manifest.version} or later"
                )
            yield backup
    except FileNotFoundError as error:
        raise BadRequest(f"there is no file {file}") from error
    except (IsADirectoryError, PermissionError) as error:
        if error.filename != str(file):
            raise
        raise BadRequest(
            f"{file} cannot be read: {error.strerror}; name the file of a backup"
        ) from error
    except (BadZipFile, NotImplementedError) as error:
        raise _damaged(file, error) from error


def _checked(file: Path, archive: ZipFile) -> Backup:
    try:
        if bad := archive.testzip():
            raise BadZipFile(f"the checksum of {bad} is wrong")
        manifest = BackupManifest(**json.loads(archive.read(_MANIFEST)))
        names = archive.namelist()
        secret = archive.read(_SECRET) if _SECRET in names else None
        for table, rows in manifest.rows.items():
            with archive.open(_member(table)) as raw:
                if sum(1 for _ in raw) != rows + 1:
                    raise BadZipFile(f"rows of {table} are missing")
        if secret is not None and sha256(secret).hexdigest() != manifest.secret_sha256:
            raise BadZipFile("the checksum of the secret is wrong")
    except _DAMAGE as error:
        raise _damaged(file, error) from error
    return Backup(archive, manifest, secret)


def _damaged(file: Path, error: Exception) -> BadRequest:
    return BadRequest(
        f"{file} is not a complete backup ({error}); nothing was changed; use another one"
    )


def _known_revision(source: Connection) -> str:
    revision = database.revision_in(source)
    if revision is None:
        raise BadRequest("the database has no tables, so there is nothing to back up")
    if not database.is_known(revision):
        raise BadRequest(
            f"the database is at revision {revision} of a newer Holdfast; back it up with that version"
        )
    return revision


def _tables(connection: Connection) -> list[Table]:
    """Our tables that exist at the connection's revision, with its columns."""
    ours = {name for name, one in metadata.tables.items() if one.info.get("in_backup", True)}
    there = set(inspect(connection).get_table_names()) & ours
    found = MetaData()
    found.reflect(connection, only=sorted(there))
    return found.sorted_tables


def _write_table(archive: ZipFile, source: Connection, table: Table) -> int:
    columns = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
        for column in table.columns
    ]
    count = 0
    with archive.open(_member(table.name), "w", force_zip64=True) as raw:
        raw.write(json.dumps([column.name for column in table.columns]).encode() + b"\n")
        rows = source.execute(select(*columns), execution_options={"yield_per": _BATCH})
        for row in rows:
            count += 1
            raw.write(json.dumps([*row], default=_time).encode() + b"\n")
    return count


def _member(table: str) -> str:
    return f"tables/{table}.jsonl"


def _time(value: object) -> dict[str, str]:
    assert isinstance(value, datetime), f"{value!r} has no form in a backup"
    aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return {"at": aware.isoformat()}


def _bound(connection: Connection, table: Table, name: str) -> Any:
    column = table.columns[name]
    if not isinstance(column.type, JSON):
        return bindparam(name)
    text = bindparam(name, type_=Text)
    # SQLite keeps JSON as text; its cast would turn that into a number.
    return text if connection.dialect.name == "sqlite" else cast(text, column.type)


def _read_row(names: list[str], line: str) -> dict[str, Any]:
    values = (
        datetime.fromisoformat(value["at"]) if isinstance(value, dict) else value
        for value in json.loads(line)
    )
    return dict(zip(names, values, strict=True))
