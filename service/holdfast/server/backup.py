"""Backup and restore of a service: its database and its secret."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Engine, text

import holdfast
from holdfast.clock import SystemClock
from holdfast.domain.access.audit import BACKUP
from holdfast.errors import BadRequest, NotPossibleNow, StoreUnavailable
from holdfast.host.home_lock import database_file, restoring_over
from holdfast.settings import Settings
from holdfast.store import backups, database
from holdfast.store.audit_log import AuditLog
from holdfast.store.backups import Backup, BackupManifest

_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_COMPANIONS = ("", "-wal", "-shm")
"""File name suffixes of a SQLite database."""


def back_up(settings: Settings, file: Path, *, with_secret: bool) -> BackupManifest:
    """Write a backup of a service, which may be running.

    Raises:
        BadRequest: there is no database, or the file cannot be written.
        StoreUnavailable: the database or the secret cannot be read.
    """
    source = database_file(settings)
    if source and not source.exists():
        raise BadRequest(
            f"there is no database {source}; set HOLDFAST_HOME or HOLDFAST_DATABASE_URL"
        )
    engine = database.open_database(settings.sqlalchemy_url)
    try:
        made = _write(engine, settings, file, with_secret=with_secret)
        _record(engine, made)
        return made
    finally:
        engine.dispose()


def _record(engine: Engine, made: BackupManifest) -> None:
    """Record a complete backup, which does not contain this row, in the audit log."""
    if made.revision != database.newest_revision():
        return  # The table may look different.
    action = BACKUP.audit_action("db.backup", "", after={"rows": sum(made.rows.values())})
    with suppress(StoreUnavailable):  # A backup of a database that is full or read-only is valid.
        AuditLog(engine, SystemClock()).record(action)


def _write(engine: Engine, settings: Settings, file: Path, *, with_secret: bool) -> BackupManifest:
    secret = _secret_of(settings)
    if secret is None:
        raise StoreUnavailable(
            f"{settings.own_secret_file} does not exist; set HOLDFAST_HOME to the home directory of the service"
        )
    return backups.write(
        file,
        engine,
        secret,
        version=holdfast.__version__,
        now=SystemClock().now(),
        with_secret=with_secret,
    )


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    manifest: BackupManifest
    aside: tuple[Path, ...]
    """Where the previous database and secret were moved; empty if there were none."""


def restore(settings: Settings, file: Path, *, force: bool) -> Restored:
    """Replace a service's database with a backup. A failure leaves everything unchanged.

    Raises:
        BadRequest: the backup cannot be used.
        NotPossibleNow: a service is running, or `force` is needed to replace something.
        StoreUnavailable: the database or the home directory cannot be used.
    """
    with backups.open_backup(file, holdfast.__version__) as backup, restoring_over(settings):
        stamp = f"before-{SystemClock().now():%Y%m%dT%H%M%S%f}Z"
        _check_secret(settings, backup, force=force)
        target = database_file(settings)
        if target:
            aside = _restore_file(target, backup, stamp, force=force)
        else:
            aside = _restore_server(settings, backup, stamp, force=force)
        return Restored(
            backup.manifest, (*aside, *_restore_secret(settings.own_secret_file, backup, stamp))
        )


def _check_secret(settings: Settings, backup: Backup, *, force: bool) -> None:
    current = _secret_of(settings)
    if current is None and backup.secret is None:
        raise BadRequest(
            f"the backup has no secret, and {settings.own_secret_file} does not exist; copy the service's secret there first"
        )
    if current is None or force or sha256(current).hexdigest() == backup.manifest.secret_sha256:
        return
    raise NotPossibleNow(
        f"{settings.own_secret_file} is not the secret of the backup: with a different one, tokens are rejected and running jobs are "
        "not recognised; set HOLDFAST_HOME to the right directory, or replace the secret with --force"
    )


def _restore_file(target: Path, backup: Backup, stamp: str, *, force: bool) -> list[Path]:
    if target.exists() and not force:
        raise _occupied(str(target))
    draft = target.with_name(f"{target.name}.{stamp}.draft")
    engine = database.open_database(f"sqlite:///{draft}")
    try:
        draft.touch(0o600)
        backup.restore(engine)
        engine.dispose()  # The last connection moves the write-ahead log into the file.
        old = target.with_name(f"{target.name}.{stamp}")
        aside = [
            there.rename(f"{old}{ending}")
            for ending in _COMPANIONS
            if (there := Path(f"{target}{ending}")).exists()
        ]
        draft.replace(target)
    except OSError as error:
        raise StoreUnavailable(f"{target} cannot be replaced: {error.strerror}") from error
    finally:
        engine.dispose()
        for ending in _COMPANIONS:
            Path(f"{draft}{ending}").unlink(missing_ok=True)
    return aside[:1]


def _restore_server(settings: Settings, backup: Backup, stamp: str, *, force: bool) -> list[Path]:
    engine = database.open_database(settings.sqlalchemy_url)
    try:
        with database.reading(engine) as connection:
            if others := connection.execute(text(_SESSIONS)).scalar_one():
                raise NotPossibleNow(
                    f"{others} other connections to the database are open; stop all services that use it before the restore"
                )
            is_empty = database.revision_in(connection) is None
        if not is_empty and not force:
            raise _occupied("the database")
        aside = settings.home / f"database.{stamp}.backup"
        if not is_empty:
            secret = _secret_of(settings) or b""
            backups.write(
                aside,
                engine,
                secret,
                version=holdfast.__version__,
                now=SystemClock().now(),
                with_secret=bool(secret),
            )
        with database.migrating(engine) as connection:
            if not is_empty:
                database.downgrade_to(connection, "base")
            backup.restore_into(connection)
    finally:
        engine.dispose()
    return [] if is_empty else [aside]


def _occupied(target: str) -> NotPossibleNow:
    return NotPossibleNow(
        f"{target} is not empty; --force moves it aside and restores the backup in its place"
    )


def _secret_of(settings: Settings) -> bytes | None:
    try:
        return settings.own_secret_file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{settings.own_secret_file} cannot be read: {error.strerror}"
        ) from error


def _restore_secret(place: Path, backup: Backup, stamp: str) -> list[Path]:
    """Install the secret of the backup; return where the previous one was moved."""
    if backup.secret is None or (place.exists() and place.read_bytes() == backup.secret):
        return []
    aside = place.with_name(f"{place.name}.{stamp}")
    draft = place.with_name(f"{place.name}.{stamp}.draft")
    draft.touch(0o600)
    draft.write_bytes(backup.secret)
    is_replaced = place.exists()
    if is_replaced:
        place.rename(aside)
    draft.replace(place)
    return [aside] if is_replaced else []
