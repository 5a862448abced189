"""Where ranks of tests hatch: forked from a process that has imported torch already, which takes seconds of a core.

What a rank runs is what torchrun would run in it, to the hooks at its end. Whoever needs a process that begins at the very
beginning starts the wrapper.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Final

IMPORTED: Final = [
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "numpy",
    "boto3",
    "holdfast_worker.run",
]
"""What every rank imports."""

NEST: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
NEST.set_forkserver_preload(IMPORTED)


class Hatchling:
    """A rank: a process that was forked, with as much of `subprocess.Popen` as tests ask for."""

    def __init__(self, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = NEST.Process(target=_live, args=(list(args), dict(environment)))
        self._process.start()
        assert self._process.pid, "a process that was started has a number"
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, or the negative number of the signal that killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended.

        Raises:
            TimeoutError: it still runs.
        """
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"rank with process id {self.pid} still runs after {timeout_s} s")
        return code

    def send_signal(self, which: signal.Signals) -> None:
        """A signal to it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, which)

    def kill(self) -> None:
        """Its end at once."""
        self.send_signal(signal.SIGKILL)


def _live(args: list[str], environment: dict[str, str]) -> None:
    """Be what `python -m holdfast_worker.entry ARGS` is in that environment, to the end."""
    import torch  # The test process itself needs none.
    from holdfast_worker import entry

    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.argv = [str(entry.__file__), *args]
    tests = str(Path(__file__).parent.parent)
    sys.path = [str(Path.cwd()), *(path for path in sys.path if path != tests)]
    ending = _Ending()
    with ending:
        entry.main()
    os._exit(ending.code)


class _Ending:
    """What an interpreter does when its program ends, however it ends: left out after a fork, unless somebody does it."""

    code = 0

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, SystemExit):
            self.code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif kind and error:
            sys.excepthook(kind, error, trace)
            self.code = 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        return True
