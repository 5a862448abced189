"""Checkpoint stores: where objects are kept by key. A directory here, S3 behind its own door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class StoreError(Exception):
    """What a store answers instead of doing what it was asked for."""


class Missing(StoreError):
    """There is no such object."""


class Refused(StoreError):
    """The store says no, and would say it again: credentials, permissions, a bucket that is not there, a full disk."""


class Unreachable(StoreError):
    """The store gave no answer, or asked to come back later."""


class Unreadable(Unreachable):
    """An object exists and cannot be read; another one may be."""


Bytes = bytes | memoryview


class Store(Protocol):
    """Objects by key. Keys are relative, with slashes. Every method may raise `Refused` and `Unreachable`."""

    lanes: int
    """Transfers at once with which it is fastest."""
    is_far: bool
    """Whether what one rank has read reaches the others sooner from that rank."""

    def put(self, key: str, data: Bytes) -> None:
        """Keep an object. It is seen whole or not at all, and durable when this returns."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Keep an object unless there is one; whether it was kept. A store that cannot tell overwrites."""

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Replace an object if it still is the `old` one, or there is none and `old` is None; whether it was replaced.

        A store that cannot tell replaces what it read a moment before.
        """

    def get(self, key: str) -> bytes:
        """The object.

        Raises:
            Missing: there is none.
        """

    def stream(self, key: str) -> Iterator[memoryview]:
        """The object, in stretches of about a megabyte; each is to be used before the next is asked for.

        Raises:
            Missing: there is none.
        """

    def list(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, in no order."""

    def delete(self, key: str) -> None:
        """Forget an object; fine if there was none."""
