"""Stacks: where the threads of a process are, as seen from outside. Standard library only; py-spy is a program.

py-spy reads the memory of the process, so that it does not matter what hangs there. Where it may not, or is not there, the
process is asked itself: `faulthandler` answers even in the middle of C, but not while the process is stopped.
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

ASK: Final = signal.SIGUSR2
"""Asks a process for its stacks. One that the script takes over is answered by the script, shortly before its end."""
TRIES: Final = ((15.0, "--native"), (5.0, "--nonblocking"))
"""Seconds, and how py-spy is to look. It cannot halt what is stopped already, so the second try does not; C is not seen
then. More time keeps nodes that hang, less never reads the symbols of a large library."""
ANSWER_S: Final = 2.0
"""For `faulthandler` to answer. The same prices."""
LONGEST_NAME: Final = 120
"""Characters of a function's name. More and those of C++ hide the stack, fewer cut off what can still be read."""
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
    """As short as it still tells something."""
    line: int
    is_library: bool = False
    """Whether it is of Python, of an installed package, or ours: not what the person wrote."""

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Stacks:
    """What was seen of a process and its children."""

    text: str
    """All threads, to be read by people; or why nothing was seen."""
    main: tuple[Frame, ...] = ()
    """Python frames of the main thread, innermost first; none if they could not be seen."""

    @property
    def place(self) -> str:
        """Where the main thread is: the innermost frame, and the innermost that the person wrote. Empty if unknown."""
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


def answer_to_asking(file: Path) -> None:
    """From now on this process writes its stacks to `file` when it is asked."""
    file.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(ASK, file=file.open("a"), all_threads=True)


def find_py_spy() -> str | None:
    """py-spy, beside this Python or on the path; None if it is not installed."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def look(pid: int, answers: Path, spy: str | None = find_py_spy()) -> Stacks:
    """The stacks of a process that writes to `answers` when it is asked; `spy` is py-spy, None if there is none."""
    stacks, trouble = _spy(pid, spy) if spy else (None, "there is no py-spy")
    if stacks is None:
        stacks = _ask(pid, answers)
    return stacks or Stacks(f"no stacks of process {pid}: {trouble}\n")


def _spy(pid: int, program: str) -> tuple[Stacks | None, str]:
    """What py-spy sees; None, and why, if it sees nothing."""
    trouble = ""
    for within_s, how in TRIES:
        command = [program, "dump", "--json", "--subprocesses", how, "--pid", str(pid)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=True,
            )
            return _read(pid, json.loads(done.stdout)), ""
        except subprocess.CalledProcessError as error:
            trouble = " ".join(error.stderr.partition("Stack backtrace")[0].split())
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            trouble = str(error)
    return None, trouble


def _read(pid: int, threads: Sequence[Any]) -> Stacks:
    """What py-spy says."""
    lines: list[str] = []
    main: tuple[Frame, ...] = ()
    for thread in threads:
        frames = [
            Frame(
                f["name"][:LONGEST_NAME],
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
    return Stacks("\n".join(lines) + "\n", main)


def _ask(pid: int, answers: Path) -> Stacks | None:
    """What the process says itself; None if it does not answer."""
    try:
        before = answers.stat().st_size
        os.kill(pid, ASK)
        until_s = time.monotonic() + ANSWER_S
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
    # The main thread was there first, and is told last.
    blocks = text.split("\n\n")
    frames = _trimmed(_frames(blocks[-1].splitlines()))
    return Stacks(text, frames) if frames else None


def _trimmed(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """A stack without what started the script."""
    kept = list(frames)
    while len(kept) > 1 and kept[-1].is_library:
        kept.pop()
    return tuple(kept)


def _frames(lines: Iterable[str]) -> Iterable[Frame]:
    """The frames of one thread in the words of `faulthandler`."""
    for line in lines:
        if match := _FRAME.search(line):
            file = match["file"]
            yield Frame(match["name"], _short(file), int(match["line"]), _is_library(file))


def _short(file: str) -> str:
    """A file without the folder in which Python looks for it."""
    for folder in sorted(LIBRARIES, key=len, reverse=True):
        if file.startswith(f"{folder}/"):
            return file.removeprefix(f"{folder}/")
    return Path(file).name


def _is_library(file: str) -> bool:
    return file.startswith((*LIBRARIES, OURS, "<frozen")) or "/site-packages/" in file
