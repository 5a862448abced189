"""Forked ranks: equal to new interpreters, ended like these, and replaced by these if they cannot be forked."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_worker.node import fork_obstacles
from holdfast_worker.node.fork_server import Program, Spare, send
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import RunDir
from worker.support.run_driver import (
    DDP_SCRIPT,
    TIMEOUT_S,
    TOTAL,
    RunDriver,
    is_gone,
    wait_until,
)

ENDLESS = "1000000"
OFF = {"HOLDFAST_WARM": "0"}
DESCRIBES_ITSELF = """
import atexit, faulthandler, gc, json, logging, multiprocessing, os, random, signal, sys, threading
from pathlib import Path

main, own = sys.modules["__main__"], Path("/proc/self")
files = [own / "fd" / fd for fd in os.listdir("/proc/self/fd")]
state = {
    "environment": dict(os.environ),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "flags": repr(sys.flags),
    "options": [sys.warnoptions, sys._xoptions],
    "main": [main.__name__, main.__file__, str(main.__spec__), __name__],
    "cwd": os.getcwd(),
    "command line": (own / "cmdline").read_text().rstrip("\\0"),
    "signals": {n.name: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.Signals},
    "mask": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "threads": [len(os.listdir("/proc/self/task")), threading.main_thread() is threading.current_thread()],
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "is a child of its agent": os.environ["HOLDFAST_AGENT"] == str(os.getppid()),
    "files": sorted(os.readlink(file) for file in files if file.exists()),
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "faulthandler": faulthandler.is_enabled(),
    "collects garbage": [gc.isenabled(), gc.get_threshold()],
    "multiprocessing": [str(multiprocessing.parent_process()), multiprocessing.current_process().name],
    "handlers of logging": str(logging.getLogger().handlers),
}
import numpy, torch
state["torch"] = [torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda.is_initialized()]
state["random"] = [random.random(), numpy.random.rand(), torch.rand(1).item(), list(multiprocessing.current_process().authkey)]
atexit.register(print, "at exit", flush=True)
del main  # A file in a cycle may lose its last lines, with and without forks.
kept = open(sys.argv[1] + os.environ["RANK"], "w")
kept.write(json.dumps(state))  # It is written when the interpreter ends.
"""
DIFFERS = ("MASTER_PORT", "HOLDFAST_", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LESSON_")
"""Variables that name the run or one of its processes."""


@pytest.fixture
def driver(tmp_path: Path) -> RunDriver:
    return RunDriver(tmp_path)


def described(folder: Path, script: Path, **extra: str) -> list[dict[str, Any]]:
    """What each of two ranks says of itself, and what they print."""
    driver = RunDriver(folder, extra=extra, forks=False)
    folder.mkdir()
    code, _, err = driver.run_wrapper("--nproc-per-node", "2", str(script), str(folder / "state-"))
    assert code == Exit.DONE, err
    assert ("new interpreters" in err) == ("HOLDFAST_WARM" in extra), err
    states = [json.loads((folder / f"state-{rank}").read_text()) for rank in range(2)]
    for rank, state in enumerate(states):
        state["prints"] = driver.log(rank)
        state["files"] = [f.replace(str(driver.run_dir), "") for f in state["files"]]
        for name in state["environment"]:
            if name.startswith(DIFFERS):
                state["environment"][name] = "..."
        state["environment"].pop("HOLDFAST_WARM", None)
    return json.loads(json.dumps(states).replace(str(folder), ""))  # type: ignore[no-any-return]


def started(driver: RunDriver) -> list[psutil.Process]:
    """The processes of two ranks in training: the agent, the ranks, and the successor of the agent."""
    wrapper = driver.start_wrapper("--nproc-per-node", "2", DDP_SCRIPT, ENDLESS)
    try:
        wait_until((driver.run_dir / "trained").exists)
    except AssertionError as error:
        wrapper.kill()
        raise AssertionError(driver.log(0), wrapper.communicate()[1]) from error
    [agent] = psutil.Process(wrapper.pid).children()
    pids = RunDir(driver.run_dir).registered_pids()
    [successor] = (child for child in agent.children() if child.pid not in pids.values())
    return [agent, *map(psutil.Process, pids.values()), successor]


def test_forked_rank_equals_a_new_interpreter(tmp_path: Path) -> None:
    """Real programs: a wrapper of tests is a fork itself."""
    script = tmp_path / "script.py"
    script.write_text(DESCRIBES_ITSELF)

    forked = described(tmp_path / "forked", script)
    spawned = described(tmp_path / "spawned", script, **OFF)

    draws = [state.pop("random") for state in (*forked, *spawned)]
    assert forked == spawned
    assert [len({str(value) for value in values}) for values in zip(*draws, strict=True)] == [4] * 4


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('the reason')", Exit.FAILED),
        ("raise ValueError('the reason')", Exit.FAILED),
        ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("os._exit(5)", 5),
    ],
)
def test_end_of_a_forked_rank_is_reported(driver: RunDriver, end: str, code: int) -> None:
    script = driver.path / "script.py"
    script.write_text(f"import atexit, os, sys\natexit.register(print, 'at exit')\n{end}\n")

    result, out, _ = driver.run_wrapper(str(script))

    assert result == code
    assert ("the reason" in out) == ("the reason" in end)
    assert out.count("at exit") == ("os." not in end)


def test_fork_that_does_not_respond_is_replaced(tmp_path: Path) -> None:
    """A spare that has been killed before it is needed."""
    script = tmp_path / "script.py"
    script.write_text("print('done')\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import os\nfork = os.fork\n"
        "def killed():\n    pid = fork()\n    pid and os.kill(pid, 9)\n    return pid\n"
        "os.fork = killed\n"
    )
    driver = RunDriver(tmp_path, extra={"PYTHONPATH": str(tmp_path / "site")}, forks=False)

    code, out, err = driver.run_wrapper(str(script))

    assert (code, out.splitlines()[-1]) == (Exit.DONE, "done"), err
    assert "a rank starts as a new interpreter, as its fork failed" in err


def test_files_of_a_program_may_swap_their_numbers(tmp_path: Path) -> None:
    texts = ["first", "second"]
    files = [os.memfd_create(text) for text in texts]
    for file, text in zip(files, texts, strict=True):
        os.write(file, text.encode())
    spare = Spare.fork()
    if not spare.pid:
        read = []
        try:
            spare.wait_for_program(os.getppid())
            read = [os.pread(file, 9, 0).decode() for file in files]
        finally:
            os._exit(read != texts[::-1])

    program = Program(
        words=[], cwd=str(tmp_path), env={**os.environ}, files=files, is_session=False, ignored=[]
    )
    spare.run(program, files[::-1])

    assert os.waitpid(spare.pid, 0)[1] == 0


@pytest.mark.parametrize("is_whole", [False, True])
def test_spare_of_a_killed_process_ends_silently(is_whole: bool) -> None:
    end, other_end = socket.socketpair()
    pid = os.fork()
    if not pid:
        end.close()
        try:
            Spare(0, other_end).wait_for_program(None)
        finally:
            os._exit(1)
    other_end.close()
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)

    with end:
        if is_whole:
            send(end, Program.here(["-c", ""], {}, [0]), [0])
        else:
            socket.send_fds(end, [(1000).to_bytes(4, "big")], [0])
            end.sendall(b'{"words": [')
    os.kill(pid, signal.SIGCONT)

    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("killed", [0, 1], ids=["agent", "rank"])
def test_kill_of_a_process_leaves_none(driver: RunDriver, killed: int) -> None:
    processes = started(driver)

    processes[killed].kill()

    wait_until(lambda: all(map(is_gone, processes)))


def test_kill_of_an_agent_ends_unused_spares(driver: RunDriver) -> None:
    """Its ranks wait for a second node, which does not come."""
    nodes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1"}
    driver.extra = {**nodes, "SKYPILOT_NODE_RANK": "1", "HOLDFAST_MASTER_PORT": "1"}
    wrapper = driver.start_wrapper("--nproc-per-node", "2", DDP_SCRIPT, ENDLESS)
    wait_until(lambda: len(psutil.Process(wrapper.pid).children(recursive=True)) == 4)
    agent, *spares = psutil.Process(wrapper.pid).children(recursive=True)
    # Before its second thread, it has not reported that it has started.
    wait_until(lambda: agent.num_threads() > 1)

    agent.kill()

    wait_until(lambda: all(map(is_gone, [agent, *spares])))
    assert wrapper.wait(TIMEOUT_S) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("os.kill(os.getpid(), 9)", "the process that forks them ended with exit code -9"),
        pytest.param(
            "1 / 0", "the process that forks them ended with exit code 1", marks=pytest.mark.full
        ),
        ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "1 threads"),
        ("os.fork = lambda: open('/none')", "a fork failed: [Errno 2]"),
    ],
)
def test_ranks_start_without_a_fork_server(tmp_path: Path, program: str, reason: str) -> None:
    """The program runs as the fork server starts."""
    (tmp_path / "script.py").write_text("print('done')\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import os, sys, threading, time\n"
        "def start():\n"
        f"    {program}\n"
        "if any('fork_server' in word for word in sys.orig_argv):\n"
        "    try:\n        start()\n"
        "    except ZeroDivisionError:\n        os._exit(1)\n"
    )
    driver = RunDriver(tmp_path, extra={"PYTHONPATH": str(tmp_path / "site")}, forks=False)

    code, out, err = driver.run_wrapper(str(tmp_path / "script.py"))

    assert (code, out.splitlines()[-1]) == (Exit.DONE, "done"), err
    assert err.count("holdfast: ranks start as new interpreters: ") == 1
    assert reason in err


@pytest.mark.parametrize(
    ("files", "env", "reason"),
    [
        ({}, {}, ""),
        ({"train.py": "import os\nos.environ['RANK']"}, {}, ""),
        ({"train.py": "import os\nos.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'"}, {}, ""),
        ({"train.py": "import os\nos.environ['TORCH_LOGS'] = 'all'"}, {}, "names TORCH_LOGS"),
        ({"train.py": "import os\nos.environ['OMP_NUM_THREADS'] = '4'"}, {}, "OMP_NUM_THREADS"),
        ({}, {"PYTHON_EXEC": "/opt/python"}, "PYTHON_EXEC is set"),
        ({}, {"CUDA_INJECTION64_PATH": "/opt/nsys.so"}, "CUDA_INJECTION64_PATH is set"),
    ],
)
def test_obstacles_to_a_fork_are_found_before_imports(
    tmp_path: Path, files: Mapping[str, str], env: Mapping[str, str], reason: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    found = fork_obstacles.before_imports(env, tmp_path / "train.py")

    assert reason in found
    assert bool(found) == bool(reason)


def test_module_beside_the_script_is_not_hidden(driver: RunDriver) -> None:
    """Torch imports a module of the standard library with this name."""
    (driver.path / "profile.py").write_text("word = 'mine'\n")
    (driver.path / "script.py").write_text(
        "import profile\nimport torch.optim\nprint(profile.word)"
    )

    code, out, err = driver.run_wrapper(str(driver.path / "script.py"))

    assert (code, out.splitlines()[-1]) == (Exit.DONE, "mine"), err
    assert "new interpreters: profile.py beside" in err


@pytest.mark.full
def test_weights_are_those_of_ranks_that_are_not_forked(tmp_path: Path) -> None:
    results = []
    for name, extra in {"forked": {}, "spawned": OFF}.items():
        driver = RunDriver(tmp_path / name, extra=extra)
        code, _, err = driver.run_wrapper("--nproc-per-node", "2", DDP_SCRIPT, TOTAL)
        assert code == Exit.DONE, err
        results.append(driver.result)

    assert results[0] == results[1]
