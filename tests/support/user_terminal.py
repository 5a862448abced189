"""The terminal of a user, in which a command of the real command line runs."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from types import TracebackType
from typing import Self

from support.fork_server import HOLDFAST
from support.live_service import PATIENCE_S, Service

COLUMNS, ROWS = 100, 30


class UserTerminal:
    """A command in a terminal, which ends with it."""

    def __init__(self, service: Service, *words: str) -> None:
        self._screen = b""
        self._shown = threading.Condition()
        self._master, self._slave = os.openpty()
        self._set_size(COLUMNS, ROWS)
        self._before = termios.tcgetattr(self._slave)
        self._process = subprocess.Popen(
            [*service.reach, HOLDFAST, *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd=service.folder,
            env={**service.environment, "TERM": "xterm", "PS1": "$ "},
            start_new_session=True,
        )
        self._left = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._left.set()
        self._reader.join()
        os.close(self._master)
        os.close(self._slave)

    def type(self, keys: str) -> None:
        """Type keys, once the command has the terminal."""
        assert select.select([], [self._master], [], PATIENCE_S)[1]
        self._until(lambda: self._is_raw() or self._process.poll() is not None)
        os.write(self._master, keys.encode())

    def shows(self, pattern: str) -> str:
        """Wait for output, and return the first group of the pattern, or all of it."""
        compiled = re.compile(pattern.encode())
        self._until(lambda: compiled.search(self._screen))
        found = compiled.search(self._screen)
        assert found
        return (found[1] if compiled.groups else found[0]).decode()

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, as a window does."""
        self._set_size(columns, rows)
        self._process.send_signal(signal.SIGWINCH)  # It is not in this session.

    def exit_code(self) -> int:
        """The exit code of the command, which has to leave the terminal as it was."""
        code = self._process.wait(timeout=PATIENCE_S)
        assert termios.tcgetattr(self._slave) == self._before, "the terminal is as before"
        return code

    def _is_raw(self) -> bool:
        local: int = termios.tcgetattr(self._slave)[3]
        return not local & termios.ICANON

    def _until(self, holds: object) -> None:
        assert callable(holds)
        with self._shown:
            for _ in range(int(PATIENCE_S / 0.2)):
                if holds():
                    return
                self._shown.wait(0.2)
        raise AssertionError(f"the terminal shows {self._screen!r}")

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while not self._left.is_set():
            if select.select([self._master], [], [], 0.2)[0]:
                data = os.read(self._master, 65536)
                with self._shown:
                    self._screen += data
                    self._shown.notify_all()
