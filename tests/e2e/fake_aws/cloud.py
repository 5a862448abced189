"""The fake cloud with all its parts, as tests use it."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from e2e.fake_aws import account, catalog, namespace
from e2e.fake_aws.build import build
from e2e.fake_aws.cgroup import Cgroup, all_cgroups
from e2e.fake_aws.hosts import all_hosts
from e2e.fake_aws.paths import API, AWS, HERE, Paths

BUCKET: Final = "holdfast"
"""An initially empty bucket, at `paths.AWS` from here and `paths.AWS_FROM_HOSTS` from hosts."""
START_S: Final = 120.0
"""Longest wait for a server.

The API server starts in 5 s on an idle machine, and in 25 s at a load of 12.
"""
_SERVER, _AWS = "api-server", "fake-aws"


class InUse(Exception):
    """Raised if another process uses the cloud of this machine."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance, as in DescribeInstances."""

    id: str
    ip: str
    state: str
    """AWS's state: pending, running, terminated."""
    region: str
    zone: str
    type: str
    market: str
    """spot or on-demand."""
    name: str
    """SkyPilot's name: the cluster's name on the cloud, with -head or -worker."""


@dataclass(frozen=True, slots=True)
class InstanceLife:
    """An instance that has ended."""

    market: str
    zone: str
    began_at: datetime
    ended_at: datetime

    @property
    def duration_s(self) -> float:
        """Seconds for which it existed."""
        return (self.ended_at - self.began_at).total_seconds()


class FakeAws:
    """A fake AWS with a real SkyPilot. Use it from a process inside of the namespace."""

    def __init__(self, paths: Paths | None = None) -> None:
        self.paths = paths or Paths.of_this_machine()
        self._lock: TextIO | None = None
        """Held from `start` to `stop`; the kernel releases it if this process dies."""
        self._denied: list[dict[str, str | None]] = []

    # --- life cycle

    def start(self, *, admin_policy: str | None = None) -> None:
        """Start a new cloud and an empty SkyPilot, after stopping an earlier one.

        `admin_policy` is the admission policy of the API server, a URL or a class; None: no policy.

        Raises:
            InUse: another process, such as another test run, uses the cloud of this folder.
        """
        self._acquire_lock()
        self._sweep()
        build(self.paths)
        namespace.up()
        self._forget()
        self._start_aws()
        image = account.furnish()
        account.client("s3").create_bucket(Bucket=BUCKET)
        catalog.write(self.paths.home, image)
        self.configure(admin_policy=admin_policy)
        self.start_api_server()

    def stop(self) -> None:
        """Stop servers, controllers and hosts. Builds, logs and databases stay."""
        self._sweep()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def configure(self, *, admin_policy: str | None = None) -> None:
        """Write the API server's configuration, which it reads for every request."""
        settings: dict[str, Any] = {
            "allowed_clouds": ["aws"],
            "jobs": {"controller": {"consolidation_mode": True}},
        }
        if admin_policy is not None:
            settings["admin_policy"] = admin_policy
        file = self.paths.home / ".sky" / "config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))  # JSON is YAML.

    # --- the API server

    def start_api_server(self) -> None:
        """Start the API server and wait until it responds."""
        command = ["sky", "api", "start", "--foreground"]
        log = self.paths.run / "api-server.log"
        Cgroup(_SERVER).start(namespace.entering(command), env=self.paths.env(), log=log)
        _wait(lambda: _answers(f"{API}/api/health"), f"the API server answers; see {log}")

    def kill_api_server(self) -> None:
        """Kill the server, its workers and its jobs controllers (SIGKILL). Hosts continue."""
        Cgroup(_SERVER).kill()

    def freeze_api_server(self) -> None:
        """Freeze the API server and its controllers: connections are accepted and never answered."""
        Cgroup(_SERVER).freeze()

    def thaw_api_server(self) -> None:
        """Let the API server continue."""
        Cgroup(_SERVER).thaw()

    def restore_api_server(self) -> None:
        """Make the API server respond, whatever was done to it."""
        if Cgroup(_SERVER).pids:
            self.thaw_api_server()
            _wait(lambda: _answers(f"{API}/api/health"), "the API server answers again")
        else:
            self.start_api_server()

    def api_server_cpu_s(self) -> float:
        """CPU seconds used by the API server and its controllers."""
        return Cgroup(_SERVER).cpu_s

    def launching(self) -> int:
        """Number of unfinished launch requests of the API server."""
        database = self.paths.home / ".sky" / "api_server" / "requests.db"
        asked = "select count(*) from requests where name = 'sky.jobs.launch' and status in ('PENDING', 'WAITING', 'RUNNING')"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as known:
            return int(known.execute(asked).fetchone()[0])

    def clusters(self) -> list[str]:
        """Names of the clusters that SkyPilot has."""
        database = self.paths.home / ".sky" / "state.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as known:
            return [name for (name,) in known.execute("select name from clusters")]

    @contextmanager
    def blackout(self) -> Iterator[None]:
        """Freeze the API server while the block runs."""
        self.freeze_api_server()
        try:
            yield
        finally:
            self.thaw_api_server()

    # --- capacity and preemptions

    def instances(self, which: str = "", *, state: str | None = "running") -> list[Instance]:
        """Instances with this id or with this part of a name.

        With state=None, terminated ones are included.
        """
        found = [Instance(**item) for item in self._request("instances")]
        return [
            i
            for i in found
            if (which == i.id or which in i.name) and (state is None or state == i.state)
        ]

    def preempt(self, which: str = "", notice_s: float | None = None) -> list[Instance]:
        """Preempt these instances: with a notice `notice_s` earlier, or at once with None."""
        chosen = self.instances(which)
        assert chosen, f"no running instance is called {which!r}"
        for instance in chosen:
            self._request("preempt", id=instance.id, notice_s=notice_s)
        return chosen

    def advise_rebalance(self, which: str = "") -> None:
        """Send a rebalance recommendation to these instances, without consequences."""
        for instance in self.instances(which):
            self._request("rebalance", id=instance.id)

    def deny(
        self, *, region: str | None = None, zone: str | None = None, market: str | None = None
    ) -> None:
        """Deny capacity where all given values match, in addition to earlier denials."""
        self._denied.append({"region": region, "zone": zone, "market": market})
        self._request("deny", rules=self._denied)

    def allow_all(self) -> None:
        """Allow capacity everywhere, as at the start."""
        self._denied.clear()
        self._request("deny", rules=[])

    def reset(self) -> None:
        """Allow capacity everywhere, and delete all events."""
        self.allow_all()
        self.paths.events.unlink(missing_ok=True)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events in order: boot, notice, rebalance, preempt, terminate, nocapacity. `at` is in UTC."""
        lines = self.paths.events.read_text().splitlines() if self.paths.events.exists() else []
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["kind"])]

    def lives(self, which: str) -> list[InstanceLife]:
        """All instances with this part of a name, in the order of their begin.

        Raises:
            AssertionError: one of them still exists.
        """
        began: dict[str, dict[str, Any]] = {}
        lives: list[InstanceLife] = []
        for event in self.events():
            if which not in str(event.get("name", "")):
                continue
            if event["kind"] == "boot":
                began[event["id"]] = event
            elif event["kind"] in {"preempt", "terminate"} and event["id"] in began:
                boot = began.pop(event["id"])
                times = (datetime.fromisoformat(each["at"]) for each in (boot, event))
                lives.append(InstanceLife(event["market"], event["zone"], *times))
        assert not began, f"the cloud has not ended {sorted(began)}"
        return sorted(lives, key=lambda life: life.began_at)

    # --- clients

    def env(self) -> dict[str, str]:
        """The environment of `sky` commands and programs with SkyPilot's SDK, which start no server."""
        return {
            **self.paths.env(),
            "SKYPILOT_API_SERVER_ENDPOINT": API,
            "SKYPILOT_DISABLE_LOCAL_API_SERVER": "1",
        }

    def exec(
        self, argv: Sequence[str | Path], *, timeout_s: float = 300, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace with SkyPilot's environment."""
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

    # --- internals

    def _acquire_lock(self) -> None:
        if self._lock is None:
            self.paths.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.paths.folder / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(f"another process uses the cloud in {self.paths.folder}") from error

    def _start_aws(self) -> None:
        command: list[str | Path] = [sys.executable, "-m", "e2e.fake_aws.fakeaws"]
        log = self.paths.run / "fake-aws.log"
        env = {**self.paths.env(), "PYTHONPATH": str(HERE.parents[1])}
        Cgroup(_AWS).start(namespace.entering(command), env=env, log=log)
        _wait(lambda: _answers(f"{AWS}/skycloud/ping"), f"the fake AWS answers; see {log}")

    def _sweep(self) -> None:
        for cgroup in all_cgroups():
            cgroup.kill()
        for host in all_hosts(self.paths):
            host.kill()

    def _forget(self) -> None:
        """Delete the files of an earlier SkyPilot except for its wheel, which takes 10 s to build."""
        wheels, kept = self.paths.home / ".sky" / "wheels", self.paths.folder / "wheels"
        if wheels.exists():
            shutil.rmtree(kept, ignore_errors=True)
            wheels.rename(kept)
        for folder in (self.paths.run, self.paths.home):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        if kept.exists():
            wheels.parent.mkdir()
            kept.rename(wheels)

    def _request(self, what: str, **words: object) -> Any:
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
