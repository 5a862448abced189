"""Fork server of a node: torch is imported once, and ranks are forks of the torchrun agent.

`holdfast-worker run` starts this module in place of `torchrun_agent`. It imports what ranks import, and forks a *spare* for each
rank while it has one thread and no GPU. Then it runs torchrun, which gives each rank to a spare instead of a new interpreter. Before that it
forks a successor, which becomes the agent if the ranks have to start again (`agent_process.py`).

A rank has the environment, arguments, files, session, signals and random state of a new interpreter, and ends as one: the spare
returns to the top of the program and runs the rank from there. If ranks cannot be forked, torchrun starts new interpreters.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from holdfast_worker.config import Config, environment, replace_environment
from holdfast_worker.console import log_info
from holdfast_worker.node import fork_obstacles
from holdfast_worker.parent_process import die_with_parent, set_command_line, set_name

ENTRYPOINT: Final = "holdfast_worker.node.rank_entrypoint"
PROGRAM: Final = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from holdfast_worker.node.fork_server import main; main()"
)
"""The argument of `python -c`. A module in the working directory must not shadow one that is imported here.
The option `-P` would do the same, but a fork has the options of its parent, and a rank is started without it."""

PRELOADED: Final = ("numpy", "torch.nn.parallel", "torch.distributed.run")
PRELOADED_FOR_TRAINING: Final = ("torch._dynamo", "holdfast_worker.run")
"""What ranks import, and the agent before them. Optimizers import `torch._dynamo` with their first step.
A longer list costs a second in runs that do not use a module; a shorter one costs it for each rank of the others."""

STORE_MODULES: Final = {
    "s3": "holdfast_worker.storage.s3",
    "gs": "holdfast_worker.storage.cloud",
    "az": "holdfast_worker.storage.cloud",
}
"""What ranks import for their checkpoint store, by the scheme of its URL."""

ANSWER_S: Final = 30.0
"""Time for a spare to accept its program, which takes a millisecond.
A lower value gives up spares on a busy machine; a higher value delays a rank whose spare was stopped."""

MOST_FILES: Final = 16
PID_BYTES: Final = 4
IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
UNCHANGEABLE: Final = (signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What `python WORDS` is started with in a new process."""

    words: Sequence[str]
    """The command line after the interpreter."""
    cwd: str
    env: Mapping[str, str]
    files: Sequence[int]
    """Numbers that the given files have in the program."""
    is_session: bool
    """Whether it leads a session of its own."""
    ignored: Sequence[int]
    """Signals that its parent ignores, as a new process ignores these too."""

    @classmethod
    def here(
        cls,
        words: Sequence[str],
        env: Mapping[str, str],
        files: Sequence[int],
        *,
        is_session: bool = True,
    ) -> Program:
        """A program as this process would start it: in its folder, and ignoring the same signals."""
        return cls(
            words=words,
            cwd=str(Path.cwd()),
            env=env,
            files=files,
            is_session=is_session,
            ignored=ignored_signals(),
        )


def ignored_signals() -> list[int]:
    """Signals that this process ignores, and the programs that it starts."""
    return [
        number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
    ]


class Spare:
    """A child that waits for its program. It is forked while its parent has one thread."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        """0 in the child itself, and in a process other than its parent until it runs a program."""
        self._connection = connection

    @classmethod
    def fork(cls) -> Spare:
        """Return a new spare, in its parent and in the child, as `os.fork` does.

        Raises:
            OSError: no process can be created.
        """
        connection, other_end = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            connection.close()
            other_end.close()
            raise
        if not pid:
            connection, other_end = other_end, connection
        other_end.close()
        return cls(pid, connection)

    def wait_for_program(self, parent: int | None, others: Sequence[Spare] = ()) -> Program:
        """In the child: the program, once it has been given one and become it.

        It ends with `parent`; None: when the other end of its connection is closed, also during the transfer of a program.
        `others` are the spares of the same parent.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Its parent ends it.
        if parent is not None:
            die_with_parent(parent)
        for other in others:
            other._connection.close()  # noqa: SLF001 - of this class
        with self._connection:
            program, files = receive(self._connection)
            if program.is_session:
                os.setsid()
            try:
                self._connection.sendall(os.getpid().to_bytes(PID_BYTES, "big"))
            except OSError:
                os._exit(0)
        become(program, files)
        return program

    def run(self, program: Program, files: Sequence[int]) -> None:
        """Have it run `program` with copies of `files`.

        Raises:
            OSError: it does not respond.
        """
        self._connection.settimeout(ANSWER_S)
        with self._connection:
            send(self._connection, program, files)
            pid = self._connection.recv(PID_BYTES, socket.MSG_WAITALL)
        if len(pid) < PID_BYTES:
            raise ConnectionResetError("the spare process has ended")
        self.pid = int.from_bytes(pid, "big")

    def disconnect(self) -> None:
        """Close the connection, with which it ends if another process is its parent."""
        self._connection.close()

    def end(self) -> None:
        """Kill and reap it."""
        self.disconnect()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def send(connection: socket.socket, program: Program, files: Sequence[int]) -> None:
    """Send a program and its files to the process at the other end of `connection`."""
    text = json.dumps(asdict(program)).encode()
    socket.send_fds(connection, [len(text).to_bytes(4, "big")], files)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Program, list[int]]:
    """Receive a program and its files; exit if the other end was closed without a whole one."""
    head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES, socket.MSG_WAITALL)
    size = int.from_bytes(head, "big")
    text = connection.recv(size, socket.MSG_WAITALL) if head else b""
    if not text or len(text) < size:
        os._exit(0)
    return Program(**json.loads(text)), files


def become(program: Program, files: Sequence[int]) -> None:
    """Give this process everything that a new interpreter for `program` has."""
    # First out of the way: the number of one file may be wanted for another.
    above = max([*files, *program.files]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for wanted, given in zip(program.files, moved, strict=True):
        os.dup2(given, wanted)
        os.close(given)
    replace_environment(program.env)
    os.chdir(program.cwd)
    importlib.invalidate_caches()
    _reset_signals(program.ignored)
    if "PYTHONFAULTHANDLER" in program.env and not faulthandler.is_enabled():
        faulthandler.enable()
    if torch := sys.modules.get("torch"):
        _reset_torch(torch)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    # The state of `random` is renewed by the interpreter.
    multiprocessing.current_process().authkey = os.urandom(32)
    sys.orig_argv = [sys.executable, *program.words]
    set_command_line(sys.orig_argv)


def _reset_signals(ignored: Sequence[int]) -> None:
    """The signals of a new interpreter: only ignored ones are inherited, handlers are not."""
    for number in signal.valid_signals() - {*UNCHANGEABLE}:
        if signal.getsignal(number) is not None:  # A handler of faulthandler stays.
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _reset_torch(torch: ModuleType) -> None:
    """The random state, and the number of threads, of a torch that is imported now."""
    torch.default_generator.seed()
    threads = environment().get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) != torch.get_num_threads():
        torch.set_num_threads(int(threads))


def run(words: Sequence[str]) -> None:
    """Run what `python WORDS` runs."""
    options = set(words[: words.index("-m")] if "-m" in words else ())
    words = list(dropwhile({"-P", "-u"}.__contains__, words))
    match words:
        case ["-m", module, *_]:
            if "-P" not in options and not sys.flags.safe_path:
                sys.path.insert(0, str(Path.cwd()))
            sys.argv = list(words[1:])
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *_]:
            sys.argv = ["-c", *words[2:]]
            sys.modules["__main__"] = ModuleType("__main__")
            exec(program, sys.modules["__main__"].__dict__)  # noqa: S102 - as `python -c` does
        case [script, *_]:
            sys.argv = list(words)
            runpy.run_path(script, run_name="__main__")


class ForkedProcess(subprocess.Popen[bytes]):
    """A program in a spare process: waited for, signalled and killed as any other.

    Raises:
        OSError: the spare process does not respond.
    """

    def __init__(self, spare: Spare, program: Program, files: Sequence[int]) -> None:
        """`files` are copied to the numbers in `program`."""
        self._spare = spare
        self._program = program
        self._files = files
        super().__init__([sys.executable, *program.words], env=program.env)

    def _execute_child(self, *_: object) -> None:
        """Take the place of fork and exec."""
        self._spare.run(self._program, self._files)
        self.pid = self._spare.pid
        self._child_created = True


def use_spares(spares: list[Spare]) -> None:
    """Have torchrun give its ranks to `spares`, and to new interpreters when none is left."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import (  # noqa: PLC0415 - the wrapper imports this module without torch
        SubprocessHandler,
        handlers,
    )

    class RankHandler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[Any]:
            if spares and args[:4] == (sys.executable, "-u", "-m", ENTRYPOINT):
                spare = spares.pop(0)
                program = Program.here(args[1:], env, [0, 1, 2])
                outputs = ((1, self._stdout), (2, self._stderr))
                files = [0, *(file.fileno() if file else own for own, file in outputs)]
                try:
                    return ForkedProcess(spare, program, files)
                except OSError as error:
                    spare.end()
                    log_info(f"a rank starts as a new interpreter, as its fork failed: {error}")
            return super()._popen(args, env)

    handlers.SubprocessHandler = RankHandler  # type: ignore[attr-defined]


def main() -> None:
    """Run torchrun and fork its ranks. In such a fork: run the rank."""
    started, handover = (int(sys.argv.pop(1)) for _ in range(2))
    ranks = next(int(w.partition("=")[2]) for w in sys.argv if w.startswith("--nproc-per-node="))
    script = Path(sys.argv[sys.argv.index(ENTRYPOINT) + 1])
    config = Config.of_node(environment())
    die_with_parent(config.wrapper)
    from holdfast_worker.node import rank_entrypoint  # noqa: PLC0415 - it is run by name elsewhere

    # Before the imports, whose handlers have to run first.
    rank_entrypoint.register_exit_handler()
    obstacle = fork_obstacles.before_imports(environment(), script)
    if not obstacle:
        preload(config, script, ranks)
        obstacle = fork_obstacles.after_imports(script)
    from holdfast_worker.node import torchrun_agent  # noqa: PLC0415 - as above

    # As in the agent: the ranks get a notice from the wrapper.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not obstacle:
        started, obstacle = _fork_successors(started, handover)
    agent = os.getpid()
    spares: list[Spare] = []
    while not obstacle and len(spares) < ranks:
        try:
            spare = Spare.fork()
        except OSError as error:
            obstacle = f"a fork failed: {error}"
            break
        if not spare.pid:
            os.close(started)
            _run_rank(rank_entrypoint, spare.wait_for_program(agent, spares))
            return
        spares.append(spare)
        obstacle = fork_obstacles.threads()
    if obstacle:
        log_info(f"ranks start as new interpreters: {obstacle}")
        while spares:
            spares.pop().end()
    use_spares(spares)
    os.write(started, b"\n")
    os.close(started)
    torchrun_agent.main()


def _fork_successors(started: int, handover: int) -> tuple[int, str]:
    """Fork a process that waits until the wrapper makes it the next agent.

    It waits at the socket `handover`. Returns in each agent, the successors included, with the file to which it reports its start, and with an obstacle to
    forks: empty without one.
    """
    while True:
        connection = socket.socket(fileno=handover)
        try:
            pid = os.fork()
        except OSError as error:
            connection.close()
            return started, f"a fork failed: {error}"
        if pid:
            connection.close()
            obstacle = fork_obstacles.threads()
            if obstacle:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return started, obstacle
        os.close(started)
        program = Spare(0, connection).wait_for_program(None)
        die_with_parent(Config.of_node(program.env).wrapper)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # After `-u`, `-c` and the program.
        started, handover, *_ = map(int, program.words[3:5])
        sys.argv = ["-c", *program.words[5:]]


def preload(config: Config, script: Path, ranks: int) -> None:
    """Import what ranks import, with the number of threads that torchrun gives them."""
    modules = [*PRELOADED]
    if _trains(script):
        modules += PRELOADED_FOR_TRAINING
    if module := STORE_MODULES.get((config.store or "").partition("://")[0]):
        modules.append(module)
    given = dict(environment())
    if ranks > 1:
        replace_environment({"OMP_NUM_THREADS": "1", **given})
    gc.disable()  # The imports make almost no garbage.
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # Collections would copy the memory that the ranks share.
    replace_environment(given)


def _trains(script: Path) -> bool:
    """Whether `script` has an optimizer, or imports more than torch and standard modules."""
    text = script.read_text(errors="replace")
    imported = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE))
    return "optim" in text or not imported <= sys.stdlib_module_names | {"numpy", "torch"}


def _run_rank(entrypoint: ModuleType, program: Program) -> None:
    """Run the rank as `python -u -m` does."""
    set_name(f"rank-{program.env.get('RANK', '')}")
    sys.argv = [str(entrypoint.__file__), *program.words[3:]]
    if not sys.flags.safe_path:
        sys.path.insert(0, program.cwd)
    sys.modules["__main__"] = entrypoint
    entrypoint.main()
