"""FakeAws: the whole of it, as tests use it."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from e2e.fake_aws import account, catalog, namespace
from e2e.fake_aws.build import build
from e2e.fake_aws.cgroup import Cgroup, all_cgroups
from e2e.fake_aws.hosts import all_hosts
from e2e.fake_aws.paths import API, AWS, CHECKOUT, HERE, Paths

BUCKET: Final = "holdfast"
"""There from the start, empty, at `workplace.AWS` from here and `workplace.AWS_FROM_HOSTS` from hosts."""
START_S: Final = 120.0
"""Longest wait for a server to answer. The API server takes 5 s alone, and 25 s at a load of 12."""
_SERVER, _AWS = "api-server", "fake-aws"


class InUse(Exception):
    """There is one cloud on a machine, and another process has it."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance, as DescribeInstances would have it."""

    id: str
    ip: str
    state: str
    """pending, running, terminated: AWS's words."""
    region: str
    zone: str
    type: str
    market: str
    """spot or on-demand."""
    name: str
    """SkyPilot's: the cluster's name on the cloud, with -head or -worker."""


class FakeAws:
    """A fake AWS, a real SkyPilot over it, and the weather. Use it from a process that is in the namespace."""

    def __init__(self, place: Paths | None = None) -> None:
        self.place = place or Paths.of_this_machine()
        self._lock: TextIO | None = None
        """Open from `start` to `stop`, and closed by the kernel when this process ends in another way."""
        self._denied: list[dict[str, str | None]] = []

    # --- life

    def start(self, *, admin_policy: str | None = None) -> None:
        """A new cloud and a new SkyPilot that remembers nothing. What an earlier one left is ended first.

        `admin_policy` is what the API server asks about every request, a URL or a class; None: no policy.

        Raises:
            InUse: another process, such as another run of the tests, uses the cloud of this folder.
        """
        self._take()
        self._sweep()
        build(self.place)
        namespace.up()
        self._forget()
        self._start_aws()
        image = account.furnish()
        account.client("s3").create_bucket(Bucket=BUCKET)
        catalog.write(self.place.home, image)
        self.configure(admin_policy=admin_policy)
        self.start_api_server()

    def stop(self) -> None:
        """Everything has ended: servers, controllers, hosts. What was built stays, and so do logs and databases."""
        self._sweep()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def configure(self, *, admin_policy: str | None = None) -> None:
        """Write the API server's configuration, which it reads again for every request."""
        settings: dict[str, Any] = {
            "allowed_clouds": ["aws"],
            "jobs": {"controller": {"consolidation_mode": True}},
        }
        if admin_policy is not None:
            settings["admin_policy"] = admin_policy
        file = self.place.home / ".sky" / "config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))  # JSON is YAML.

    # --- the API server

    def start_api_server(self) -> None:
        """It answers."""
        command = ["sky", "api", "start", "--foreground"]
        log = self.place.run / "api-server.log"
        Cgroup(_SERVER).start(namespace.entering(command), env=self.place.env(), log=log)
        _wait(lambda: _answers(f"{API}/api/health"), f"the API server answers; see {log}")

    def kill_api_server(self) -> None:
        """SIGKILL for it, its workers and its jobs controllers, as when its machine dies. Hosts continue."""
        Cgroup(_SERVER).kill()

    def freeze_api_server(self) -> None:
        """It hangs: connections are taken by the kernel and never answered. Its controllers hang too."""
        Cgroup(_SERVER).freeze()

    def thaw_api_server(self) -> None:
        """It continues."""
        Cgroup(_SERVER).thaw()

    def restore_api_server(self) -> None:
        """It answers, whatever was done to it."""
        if Cgroup(_SERVER).pids:
            self.thaw_api_server()
            _wait(lambda: _answers(f"{API}/api/health"), "the API server answers again")
        else:
            self.start_api_server()

    def api_server_cpu_s(self) -> float:
        """Seconds of a core that the API server and its controllers have used so far."""
        return Cgroup(_SERVER).cpu_s

    def launching(self) -> int:
        """Requests to launch a managed job that the API server has not carried out yet."""
        database = self.place.home / ".sky" / "api_server" / "requests.db"
        asked = "select count(*) from requests where name = 'sky.jobs.launch' and status in ('PENDING', 'WAITING', 'RUNNING')"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as known:
            return int(known.execute(asked).fetchone()[0])

    @contextmanager
    def blackout(self) -> Iterator[None]:
        """Frozen as long as the block lasts."""
        self.freeze_api_server()
        try:
            yield
        finally:
            self.thaw_api_server()

    # --- the weather

    def instances(self, which: str = "", *, state: str | None = "running") -> list[Instance]:
        """Instances whose id is `which` or whose name contains it. With state=None also those that are gone."""
        found = [Instance(**item) for item in self._ask("instances")]
        return [
            i
            for i in found
            if (which == i.id or which in i.name) and (state is None or state == i.state)
        ]

    def preempt(self, which: str = "", notice_s: float | None = None) -> list[Instance]:
        """Those instances are taken back: told first and killed `notice_s` later, or killed at once with None."""
        taken = self.instances(which)
        assert taken, f"no running instance is called {which!r}"
        for instance in taken:
            self._ask("preempt", id=instance.id, notice_s=notice_s)
        return taken

    def advise_rebalance(self, which: str = "") -> None:
        """Those instances are told that they are in danger. Nothing else happens."""
        for instance in self.instances(which):
            self._ask("rebalance", id=instance.id)

    def deny(
        self, *, region: str | None = None, zone: str | None = None, market: str | None = None
    ) -> None:
        """InsufficientInstanceCapacity where all that is given matches; together with what was denied before."""
        self._denied.append({"region": region, "zone": zone, "market": market})
        self._ask("deny", rules=self._denied)

    def allow_all(self) -> None:
        """There is capacity everywhere, as at the start."""
        self._denied.clear()
        self._ask("deny", rules=[])

    def clear_weather(self) -> None:
        """Capacity everywhere, and nothing has happened yet."""
        self.allow_all()
        self.place.events.unlink(missing_ok=True)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What happened, oldest first: boot, notice, rebalance, preempt, terminate, nocapacity. `at` is UTC, ISO."""
        lines = self.place.events.read_text().splitlines() if self.place.events.exists() else []
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["kind"])]

    # --- clients

    def env(self) -> dict[str, str]:
        """The environment of a `sky` command or a program with SkyPilot's SDK. It starts no server of its own."""
        return {
            **self.place.env(),
            "SKYPILOT_API_SERVER_ENDPOINT": API,
            "SKYPILOT_DISABLE_LOCAL_API_SERVER": "1",
        }

    def exec(
        self, argv: Sequence[str | Path], *, timeout_s: float = 300, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run something in the namespace, with SkyPilot's environment."""
        done = subprocess.run(
            namespace.entering(argv),
            env=self.env(),
            text=True,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}\n{done.stderr}"
        return done

    # --- within

    def _take(self) -> None:
        if self._lock is None:
            self.place.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.place.folder / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(f"another process uses the cloud in {self.place.folder}") from error

    def _start_aws(self) -> None:
        command: list[str | Path] = [CHECKOUT / ".venv/bin/python", "-m", "e2e.fake_aws.fakeaws"]
        log = self.place.run / "fake-aws.log"
        env = {**self.place.env(), "PYTHONPATH": str(HERE.parents[1])}
        Cgroup(_AWS).start(namespace.entering(command), env=env, log=log)
        _wait(lambda: _answers(f"{AWS}/skycloud/ping"), f"the fake AWS answers; see {log}")

    def _sweep(self) -> None:
        for pen in all_cgroups():
            pen.kill()
        for host in all_hosts(self.place):
            host.kill()

    def _forget(self) -> None:
        """All of an earlier SkyPilot but its wheel of itself, which takes 10 s to make and is always the same."""
        wheels, kept = self.place.home / ".sky" / "wheels", self.place.folder / "wheels"
        if wheels.exists():
            shutil.rmtree(kept, ignore_errors=True)
            wheels.rename(kept)
        for folder in (self.place.run, self.place.home):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        if kept.exists():
            wheels.parent.mkdir()
            kept.rename(wheels)

    def _ask(self, what: str, **words: object) -> Any:
        request = urllib.request.Request(f"{AWS}/skycloud/{what}", json.dumps(words).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True


def _wait(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < deadline_s, f"waited too long until {what}"
        time.sleep(0.2)
