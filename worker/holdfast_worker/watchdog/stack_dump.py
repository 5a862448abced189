"""Stack dumps of another process. Standard library only; py-spy is an optional program.

py-spy reads the memory of the process, so that it works whatever hangs. Without it, or without its permission, the process
dumps its own stacks: `faulthandler` works even inside C code, but not while the process is stopped.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DUMP_SIGNAL: Final = signal.SIGUSR2
"""Signal that requests a stack dump.
A script that installs its own handler receives it shortly before its end."""
PY_SPY_TRIES: Final = ((15.0, "--native"), (5.0, "--nonblocking"))
"""Timeout in seconds and option of py-spy.
It cannot halt a stopped process, so the second try does not, and omits C frames. A lower value fails on the symbols of a large
library; a higher value pays for nodes that hang."""
DUMP_TIMEOUT_S: Final = 2.0
"""Timeout of `faulthandler`.
A lower value fails on a busy node; a higher value pays for nodes that hang."""
MAX_NAME_CHARS: Final = 120
"""Characters of a function's name.
A lower value cuts readable names; with a higher value C++ names hide the stack."""
PAUSE_S: Final = 0.05
OURS: Final = str(Path(__file__).parent)
LIBRARIES: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib"))
TORCH: Final = re.compile(r"(^|/)torch/")
_FRAME: Final = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    name: str
    file: str
    """Path relative to its library, or the file name."""
    line: int
    is_library: bool = False
    """Whether it belongs to Python, an installed package or Holdfast, not to the user's code."""

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class StackDump:
    """Stacks of a process and its children."""

    text: str
    """All threads as text for people, or the reason for their absence."""
    main: tuple[Frame, ...] = ()
    """Python frames of the main thread, innermost first; empty if unknown."""

    @property
    def location(self) -> str:
        """Innermost frame of the main thread, and the innermost one of the user's code.

        Empty if unknown.
        """
        if not self.main:
            return ""
        inner = self.main[0]
        own = next((frame for frame in self.main if not frame.is_library), inner)
        return str(inner) if own is inner else f"{inner}, called from {own}"

    @property
    def is_in_torch(self) -> bool:
        """Whether the innermost frame is one of torch's."""
        return bool(self.main) and bool(TORCH.search(self.main[0].file))


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    return False


def install_stack_dump_handler(file: Path) -> None:
    """Write the stacks of this process to `file` on `DUMP_SIGNAL`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(DUMP_SIGNAL, file=file.open("a"), all_threads=True)


def find_py_spy() -> str | None:
    """Path of py-spy, beside this Python or on PATH; None if it is not installed."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump_stacks(pid: int, answers: Path, spy: str | None = find_py_spy()) -> StackDump:
    """Dump the stacks of a process with py-spy, or by its own handler, which writes `answers`."""
    stacks, problem = _dump_with_py_spy(pid, spy) if spy else (None, "py-spy is not installed")
    if stacks is None:
        stacks = _dump_with_faulthandler(pid, answers)
    return stacks or StackDump(f"no stacks of process {pid}: {problem}\n")


def _dump_with_py_spy(pid: int, program: str) -> tuple[StackDump | None, str]:
    """Stacks from py-spy; None and the reason if it fails."""
    problem = ""
    for within_s, option in PY_SPY_TRIES:
        command = [program, "dump", "--json", "--subprocesses", option, "--pid", str(pid)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=True,
            )
            return _parse_py_spy(pid, json.loads(done.stdout)), ""
        except subprocess.CalledProcessError as error:
            problem = " ".join(error.stderr.partition("Stack backtrace")[0].split())
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            problem = str(error)
    return None, problem


def _parse_py_spy(pid: int, threads: Sequence[Any]) -> StackDump:
    """Parse the JSON output of py-spy."""
    lines: list[str] = []
    main: tuple[Frame, ...] = ()
    for thread in threads:
        frames = [
            Frame(
                f["name"][:MAX_NAME_CHARS],
                f["short_filename"] or f["filename"],
                f["line"],
                _is_library(f["filename"]),
            )
            for f in thread["frames"]
        ]
        if thread["pid"] == thread["os_thread_id"] == pid:
            main = _trimmed(frame for frame in frames if frame.file.endswith((".py", ">")))
        state = "active" if thread["active"] else "idle"
        holds = ", holds the GIL" if thread["owns_gil"] else ""
        name = f" {thread['thread_name']}" if thread["thread_name"] else ""
        lines.append(
            f"process {thread['pid']}, thread {thread['os_thread_id']}{name} ({state}{holds})"
        )
        lines += [f"    {frame}" for frame in frames]
    return StackDump("\n".join(lines) + "\n", main)


def _dump_with_faulthandler(pid: int, answers: Path) -> StackDump | None:
    """Stacks from the process's own handler; None if it does not respond."""
    try:
        before = answers.stat().st_size
        os.kill(pid, DUMP_SIGNAL)
        until_s = time.monotonic() + DUMP_TIMEOUT_S
        size = before
        while time.monotonic() < until_s:
            time.sleep(PAUSE_S)
            grown = answers.stat().st_size
            if before < size == grown:
                break
            size = grown
        text = answers.read_text(errors="replace")[before:]
    except OSError:
        return None
    # The main thread is the oldest one, and is listed last.
    blocks = text.split("\n\n")
    frames = _trimmed(_parse_faulthandler(blocks[-1].splitlines()))
    return StackDump(text, frames) if frames else None


def _trimmed(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """A stack without the outer frames that started the script."""
    kept = list(frames)
    while len(kept) > 1 and kept[-1].is_library:
        kept.pop()
    return tuple(kept)


def _parse_faulthandler(lines: Iterable[str]) -> Iterable[Frame]:
    """Parse the frames of one thread from the output of `faulthandler`."""
    for line in lines:
        if match := _FRAME.search(line):
            file = match["file"]
            yield Frame(match["name"], _short_path(file), int(match["line"]), _is_library(file))


def _short_path(file: str) -> str:
    """A path relative to its library directory, or the file name."""
    for folder in sorted(LIBRARIES, key=len, reverse=True):
        if file.startswith(f"{folder}/"):
            return file.removeprefix(f"{folder}/")
    return Path(file).name


def _is_library(file: str) -> bool:
    return file.startswith((*LIBRARIES, OURS, "<frozen")) or "/site-packages/" in file
