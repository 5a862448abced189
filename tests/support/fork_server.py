"""Programs that tests start, forked from a process that has imported what they import: the service takes 1 to 2 s of CPU time, torch
2 to 3 s.

A forked program is a process of its own, with its own environment, folder, output, signals and exit code. What it starts in turn is
also forked if it is the agent of a wrapper, whose ranks are forks anyway. Tests that are about the start of a real process, or about variables
that are read while torch is imported, start the program itself.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, NoReturn

from holdfast_worker.node.fork_server import (
    ENTRYPOINT,
    PROGRAM,
    Program,
    Spare,
    become,
    receive,
    run,
    send,
)
from holdfast_worker.parent_process import die_with_parent

HOLDFAST: Final = str(Path(sys.executable).with_name("holdfast"))
AGENT: Final = "holdfast_worker.node.torchrun_agent"
ENTRY: Final = ENTRYPOINT
SHARED: Final = "HOLDFAST_TEST_FORKS_{kind}"
"""Environment variable: where the process listens that all test processes share."""
NAMESPACE: Final = "HOLDFAST_TEST_NETWORK_NAMESPACE"
"""Environment variable of a program: the file of the network namespace in which it runs, with all that it starts."""
CLONE_NEWNET: Final = 0x40000000
IMPORTED: Final[Mapping[str, Sequence[str]]] = {
    "service": (
        "holdfast.cli.app",
        "holdfast.api.app",
        "holdfast.server.process",
        "alembic.command",
        "httpx2",
        "psycopg",
        "sqlalchemy.dialects.postgresql",
        "sqlalchemy.dialects.sqlite",
        "uvicorn",
    ),
    "worker": (
        "torch._dynamo",
        "torch.distributed.run",
        "torch.nn.parallel",
        "numpy",
        "boto3",
        "holdfast_worker.node.launch",
        "holdfast_worker.run",
    ),
}
"""What the programs of the service and those of the worker import. Not modules that are run with `-m`: Python warns of these."""


class Forked(subprocess.Popen[Any]):
    """A program that runs in a fork. Its words are those after `python`."""

    used_s: ClassVar[float] = 0.0
    """CPU time of all that have ended, with the children that they waited for."""

    def __init__(self, kind: str, words: Sequence[str], **given: Any) -> None:
        self._kind = kind
        super().__init__([sys.executable, *words], stdin=subprocess.DEVNULL, **given)

    def _execute_child(self, *given: Any) -> None:
        program, fds = _ordered(given)
        self._status, status = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.connect(_address(self._kind, os.getpid()))
            # The last one is not for the program, but for what reports its end.
            send(door, program, [*fds, status])
        os.close(status)
        self.pid = int(self._line())
        self._child_created = True
        self._close_pipe_fds(*given[10:16])

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not select.select([self._status], [], [], 0 if flags else None)[0]:
            return 0, 0
        status, used_s = self._line().split()
        os.close(self._status)
        Forked.used_s += float(used_s)
        return self.pid, int(status)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._status, 1)
            assert read, "the process from which programs are forked has ended"
            line += read
        return line


def _ordered(given: Sequence[Any]) -> tuple[Program, list[int]]:
    """A program and its files, out of what `subprocess.Popen` hands to `_execute_child`."""
    (_, *words), cwd, env = given[0], given[5], given[6]
    passed = [*given[4]]
    program = Program(
        words=words,
        cwd=str(cwd or Path.cwd()),
        env=dict(os.environ if env is None else env),
        files=[0, 1, 2, *passed],
        is_session=given[21],
        ignored=[],
    )
    streams = given[10], given[13], given[15]
    return program, [*(own if file == -1 else file for own, file in enumerate(streams)), *passed]


def share() -> None:
    """Start the processes from which programs are forked, for all test processes that this one starts."""
    for kind in IMPORTED:
        os.environ[SHARED.format(kind=kind)] = _start(kind)


@functools.cache
def _address(kind: str, _owner: int) -> str:
    """Where the process listens from which programs are forked; started when this test process first needs it."""
    return f"\0{os.environ.get(SHARED.format(kind=kind)) or _start(kind)}"


def _start(kind: str) -> str:
    server = subprocess.Popen([sys.executable, __file__, kind], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # fmt: skip
    atexit.register(_end, server)
    assert server.stdout
    address = server.stdout.readline().decode().strip()
    assert address, "the process from which programs are forked did not start"
    return address


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def main(kind: str) -> None:
    """Fork what is ordered, until the test process ends."""
    die_with_parent()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind("")  # A free name that no file has.
    door.listen()
    # Callers wait for the imports, but not the test process that starts others.
    print(door.getsockname()[1:].decode(), flush=True)
    for module in IMPORTED[kind]:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a thread would be missing after the fork"
    gc.collect()
    gc.freeze()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # It ends with the test process, which may have to end services first.
    with door:
        while True:
            caller, _ = door.accept()
            with caller:
                program, fds = receive(caller)
            server = os.getpid()
            if not os.fork():
                door.close()
                _mind(program, fds, server)
            for fd in fds:
                os.close(fd)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _mind(program: Program, fds: list[int], server: int) -> NoReturn:
    """Fork the program, and report its process id and its end."""
    *streams, status = fds
    die_with_parent(server)
    minder, pid = os.getpid(), os.fork()
    if not pid:
        die_with_parent(minder)
        os.close(status)
        _become(program, streams)
    for stream in streams:
        os.close(stream)  # A reader would wait for more.
    os.write(status, f"{pid}\n".encode())
    _, ended, used = os.wait4(pid, 0)
    with suppress(BrokenPipeError):
        os.write(status, f"{ended} {used.ru_utime + used.ru_stime}\n".encode())
    os._exit(0)


def _become(program: Program, fds: Sequence[int]) -> NoReturn:
    """Be the program, to the end."""
    become(program, fds)
    sys.path.remove(str(Path(__file__).parent))
    if NAMESPACE in program.env:
        _enter_network(program.env[NAMESPACE])
    _run(program)


def _enter_network(namespace: str) -> None:
    """Enter a network namespace; `os.setns` is new in Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(namespace, os.O_RDONLY)
    if libc.setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace", namespace)
    os.close(file)


def _run(program: Program) -> NoReturn:
    _use_spare(program.words)
    ending = Ending()
    with ending:
        run(program.words)
    os._exit(ending.code)


def _use_spare(words: Sequence[str]) -> None:
    """Fork what a wrapper will start, while it has one thread: the agent, which forks its ranks by itself."""
    if not (words[:2] == ["-m", "holdfast_worker"] or words[0] == "-c"):
        return
    wrapper, spare = os.getpid(), Spare.fork()
    if not spare.pid:
        _run(spare.wait_for_program(wrapper))
    spares = [spare]
    start = subprocess.Popen._execute_child

    def execute_child(popen: subprocess.Popen[Any], *given: Any) -> None:
        if spares and {AGENT, PROGRAM} & set(given[0][1:4]):
            program, files = _ordered(given)
            with suppress(OSError):  # A test may have killed it.
                spares.pop().run(program, files)
                popen.pid = spare.pid
                popen._child_created = True
                popen._close_pipe_fds(*given[10:16])
                return
        start(popen, *given)

    subprocess.Popen._execute_child = execute_child


class Ending:
    """What an interpreter does when its program ends, however it ends. A fork has to do it itself."""

    code = 0

    def __enter__(self) -> None:
        """Nothing is to be done at the start."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, SystemExit):
            self.code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        elif kind and error:
            sys.excepthook(kind, error, trace)
            self.code = 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        return True


if __name__ == "__main__":
    main(sys.argv[1])
