"""The terminal of the user of `holdfast shell`: its mode, size, and keys that end a shell."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from holdfast_worker.protocol.node_shells import MAX_TERMINAL_SIZE

READ_BYTES: Final = 16 * 1024
"""Bytes that are read of the terminal at once. A lower value makes more requests for a pasted text; a higher value exceeds what
waits for a node."""
USUAL_SIZE: Final = (80, 24)
"""Columns and rows of a terminal that does not know its size."""
_ESCAPE: Final = b"~"
_END: Final = b"."
_LINE_ENDS: Final = b"\r\n"


class EscapeKeys:
    """Finds `~.` at the start of a line, as in ssh; `~~` there is one `~`."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def feed(self, keys: bytes) -> tuple[bytes, bool]:
        """The keys for the shell, and whether the user ends it."""
        sent = bytearray()
        for number in keys:
            key = bytes([number])
            if self._held:
                self._held = False
                if key == _END:
                    return bytes(sent), True
                sent += key if key == _ESCAPE else _ESCAPE + key
            elif self._at_start and key == _ESCAPE:
                self._held = True
                continue
            else:
                sent += key
            self._at_start = key in _LINE_ENDS
        return bytes(sent), False


class LocalTerminal:
    """Standard input and output, while a shell has them."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(self._input)
        except OSError:
            return USUAL_SIZE
        known = zip((columns, rows), USUAL_SIZE, strict=True)
        width, height = (min(MAX_TERMINAL_SIZE, value) or usual for value, usual in known)
        return width, height

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Pass every key on, and restore the terminal afterwards, also at SIGTERM and SIGHUP."""
        before = termios.tcgetattr(self._input)
        wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]] = {
            signal.SIGWINCH: lambda *_: None,
            signal.SIGTERM: _exit,
            signal.SIGHUP: _exit,
        }
        previous = {number: signal.signal(number, call) for number, call in handlers.items()}
        try:
            tty.setraw(self._input)
            yield
        finally:
            with suppress(termios.error):  # The terminal may be gone.
                termios.tcsetattr(self._input, termios.TCSADRAIN, before)
            for number, call in previous.items():
                signal.signal(number, call)
            signal.set_wakeup_fd(wakeup)

    def wake(self) -> None:
        """Have `keys` return."""
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def keys(self) -> bytes | None:
        """Wait for keys; none if the size may have changed or after `wake`; None if it is gone."""
        ready, _, _ = select.select([self._input, self._woken], [], [])
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, READ_BYTES)
        if self._input not in ready:
            return b""
        try:
            return os.read(self._input, READ_BYTES) or None
        except OSError:
            return None

    def show(self, data: bytes) -> None:
        """Show output of a shell."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """Show a sentence of this program on a line of its own."""
        with suppress(OSError):
            os.write(sys.stderr.fileno(), f"\r\nholdfast: {text}\r\n".encode())


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
