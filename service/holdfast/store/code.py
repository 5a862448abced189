"""Uploaded code in the database, shared by replicas that have no common home directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from sqlalchemy import Engine, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import code_pieces, code_trees

_NAMES_PER_QUERY: Final = 500
"""Digests in one query. A lower value makes more queries; SQLite permits a few thousand."""


class CodeTable:
    """Pieces and directories of all owners. Its methods block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def sizes(self, owner: str, digests: Sequence[str], now: datetime) -> dict[str, int]:
        """Return the sizes in bytes of the pieces that exist, and record their use."""
        found: dict[str, int] = {}
        for some in _batches(digests):
            of_these = (code_pieces.c.owner == owner) & code_pieces.c.digest.in_(some)
            query = select(code_pieces.c.digest, code_pieces.c.size_bytes).where(of_these)
            with writing(self._engine) as connection:
                rows = connection.execute(query).all()
                if rows:
                    connection.execute(update(code_pieces).where(of_these).values(used_at=now))
            found |= {row.digest: row.size_bytes for row in rows}
        return found

    def add_piece(self, owner: str, digest: str, content: bytes, now: datetime) -> None:
        """Store a piece; it may exist."""
        row = {
            "owner": owner,
            "digest": digest,
            "size_bytes": len(content),
            "content": content,
            "used_at": now,
        }
        mine = (code_pieces.c.owner == owner) & (code_pieces.c.digest == digest)
        with writing(self._engine) as connection:
            if not connection.execute(update(code_pieces).where(mine).values(used_at=now)).rowcount:
                connection.execute(code_pieces.insert().values(**row))

    def content(self, owner: str, digest: str) -> bytes | None:
        """Return the content of a piece; None if it does not exist."""
        mine = (code_pieces.c.owner == owner) & (code_pieces.c.digest == digest)
        with reading(self._engine) as connection:
            found: bytes | None = connection.execute(
                select(code_pieces.c.content).where(mine)
            ).scalar()
        return found

    def add_tree(self, owner: str, tree_id: str, entries: str, now: datetime) -> None:
        """Store a directory, whose pieces exist; it may exist as well."""
        row = {"owner": owner, "id": tree_id, "entries": entries, "used_at": now}
        if self.tree(owner, tree_id, now) is None:
            try:
                with writing(self._engine) as connection:
                    connection.execute(code_trees.insert().values(**row))
            except IntegrityError:  # Another request has stored it by now.
                return

    def tree(self, owner: str, tree_id: str, now: datetime) -> str | None:
        """Return the entries of a directory and record its use; None if it does not exist."""
        mine = (code_trees.c.owner == owner) & (code_trees.c.id == tree_id)
        with writing(self._engine) as connection:
            if not connection.execute(update(code_trees).where(mine).values(used_at=now)).rowcount:
                return None
            entries: str = connection.execute(select(code_trees.c.entries).where(mine)).scalar_one()
        return entries

    def usage(self) -> Mapping[str, int]:
        """Return the size in bytes of the code of each owner."""
        pieces = select(code_pieces.c.owner, func.sum(code_pieces.c.size_bytes)).group_by("owner")
        lists = select(code_trees.c.owner, func.sum(func.length(code_trees.c.entries)))
        total: dict[str, int] = {}
        with reading(self._engine) as connection:
            for query in (pieces, lists.group_by("owner")):
                for owner, size_bytes in connection.execute(query):
                    total[owner] = total.get(owner, 0) + int(size_bytes)
        return total

    def trees(self) -> Iterator[tuple[str, str]]:
        """Yield the owner and the entries of each directory."""
        with reading(self._engine) as connection:
            names = connection.execute(select(code_trees.c.owner, code_trees.c.id)).all()
        for name in names:
            mine = (code_trees.c.owner == name.owner) & (code_trees.c.id == name.id)
            with reading(self._engine) as connection:
                entries = connection.execute(select(code_trees.c.entries).where(mine)).scalar()
            if entries is not None:
                yield name.owner, entries

    def delete_trees(self, unused_since: datetime) -> int:
        """Delete directories that were last used before a time; return their number."""
        with writing(self._engine) as connection:
            return connection.execute(
                delete(code_trees).where(code_trees.c.used_at < unused_since)
            ).rowcount

    def delete_pieces(self, kept: Mapping[str, set[str]], unused_since: datetime) -> int:
        """Delete pieces last used before a time, except those kept by owner; return their number.

        A piece of a directory that is stored at the same time was used after `unused_since`.
        """
        old = select(code_pieces.c.owner, code_pieces.c.digest).where(
            code_pieces.c.used_at < unused_since
        )
        with reading(self._engine) as connection:
            rows = connection.execute(old).all()
        deleted = 0
        for owner in {row.owner for row in rows}:
            gone = {row.digest for row in rows if row.owner == owner} - kept.get(owner, set())
            for some in _batches(sorted(gone)):
                mine = (code_pieces.c.owner == owner) & code_pieces.c.digest.in_(some)
                with writing(self._engine) as connection:
                    deleted += connection.execute(
                        delete(code_pieces).where(mine, code_pieces.c.used_at < unused_since)
                    ).rowcount
        return deleted


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, _NAMES_PER_QUERY)):
        yield some
