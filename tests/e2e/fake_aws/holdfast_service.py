"""The real Holdfast service and its command line inside of the cloud's namespace."""

from __future__ import annotations

import sqlite3
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.fake_aws.build import build
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.paths import API, GATE, Paths
from holdfast.skypilot_server.admission_plugin import install_gate, write_gate_address
from holdfast.store.identity.service_tokens import ServiceTokens
from support.live_service import EXAMPLE, Service

SECRET: Final = "5e" * 32
"""Secret of all services, known in advance for the admission URL in SkyPilot's configuration."""
PORT: Final = 8710
CLOUD_PATIENCE_S: Final = 1500.0
"""Longest wait for machines: at a load of 25, 15 minutes for 50 s of work of SkyPilot."""
S3_KEY, S3_SECRET, BUCKET = "harbour", "lantern-and-rope", "checkpoints"


def gate_url(api: str = f"http://127.0.0.1:{PORT}") -> str:
    """Return the URL of the admission policy."""
    secret = ServiceTokens(None, SECRET.encode()).for_gate()  # type: ignore[arg-type] - needs no database
    return f"{api}/v1/skypilot/policy/{secret}"


def start_gated(cloud: FakeAws) -> None:
    """Start a cloud whose SkyPilot requests admission for the launches of Holdfast only."""
    build(cloud.paths)
    install_gate(next(cloud.paths.venv.glob("lib/python*/site-packages")))
    cloud.start(admin_policy="holdfast_gate.Gate")
    write_gate_address(cloud.paths.home, gate_url())


class HoldfastService(Service):
    """A Holdfast service that uses SkyPilot."""

    def __init__(self, folder: Path, paths: Paths, *, skypilot: str = API) -> None:
        super().__init__(folder)
        self.port = PORT
        self.words = ("serve", "--host", "0.0.0.0")
        self.environment["HOLDFAST_TRUST_LOOPBACK"] = "true"
        self.environment |= {
            "HOLDFAST_URL": f"http://127.0.0.1:{PORT}",
            "HOLDFAST_PUBLIC_URL": f"http://{GATE}:{PORT}",
            "HOLDFAST_SKYPILOT_URL": skypilot,
            "HOLDFAST_SKYPILOT_HOME": str(paths.home),
            "HOLDFAST_SKYPILOT_SHARES_FILES": "true",
            "HOLDFAST_SKYPILOT_LOOK_EVERY_S": "5",
        }
        self.home.mkdir(mode=0o700)
        (self.home / "secret").write_text(SECRET)

    def submit_training(self, endpoint: str, *, steps: int, **words: Any) -> str:
        """Submit the example on two nodes, with checkpoints on the S3 server at `endpoint`."""
        return self.submit(
            **{
                "name": "tiny-gpt",
                "num_nodes": 2,
                "workdir": str(EXAMPLE),
                "resources": {"infra": "aws", "instance_type": "m6i.large", "use_spot": True},
                "envs": {
                    "AWS_ENDPOINT_URL_S3": endpoint,
                    "AWS_ACCESS_KEY_ID": S3_KEY,
                    "OMP_NUM_THREADS": "1",
                },
                "secrets": {"AWS_SECRET_ACCESS_KEY": S3_SECRET},
                "run": f"holdfast-worker run train.py --steps {steps} --step-seconds 0.2",
                "holdfast": {"checkpoint": {"store": f"s3://{BUCKET}/runs", "every": "50 steps"}},
                **words,
            }
        )

    def events(self, job_id: str, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of a job in order."""
        events: list[dict[str, Any]] = self.json("events", job_id)
        return [event for event in events if kind in (None, event["kind"])]

    def wait_long(self, true: Any, what: str, patience_s: float = CLOUD_PATIENCE_S) -> None:
        """Wait for something that needs machines."""
        deadline_s = time.monotonic() + patience_s
        while not true():
            log = (self.folder / "service.log").read_text()[-3000:]
            assert time.monotonic() < deadline_s, f"waited too long until {what}\n{log}"
            time.sleep(1)

    def wait_for(self, job_id: str, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for this number of events of a kind."""
        self.wait_long(
            lambda: len(self.events(job_id, kind)) >= count or self._is_over(job_id, kind),
            f"{job_id} has {count} {kind}",
        )
        found = self.events(job_id, kind)
        assert len(found) >= count, f"{job_id} ended first: {self.events(job_id)[-3:]}"
        return found

    def wait_for_log(self, job_id: str, attempt: int, text: str) -> None:
        """Wait until the service has copied a text from an attempt's log without a reader."""
        copy = f"skypilot-launches/logs/{job_id}-*/attempt-{attempt:06}.log"
        self.wait_long(
            lambda: any(text.encode() in file.read_bytes() for file in self.home.glob(copy)),
            f"the log of attempt {attempt} has {text!r}",
        )

    def listed(self, job_id: str) -> list[dict[str, Any]]:
        """SkyPilot's managed jobs of a job, past and present, from SkyPilot's own database."""
        return self._listed(f"%{job_id}-%")

    def listed_groups(self, job_id: str) -> list[dict[str, Any]]:
        """The managed jobs of a job's node groups, past and present."""
        return self._listed(f"%{job_id}_1")

    def _listed(self, pattern: str) -> list[dict[str, Any]]:
        database = f"file:{self.environment['HOLDFAST_SKYPILOT_HOME']}/.sky/spot_jobs.db?mode=ro"
        query = (
            "select spot.spot_job_id as id, job_info.name as name, spot.status as status, "
            "job_info.schedule_state as schedule, job_info.dag_yaml_content as task from spot join job_info on job_info.spot_job_id = spot.spot_job_id where job_info.name like ?"
        )
        with closing(sqlite3.connect(database, uri=True, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, [pattern])]

    def _is_over(self, job_id: str, kind: str) -> bool:
        return kind != "Finished" and bool(self.events(job_id, "Finished"))


@contextmanager
def s3_server(folder: Path, port: int = 8711) -> Iterator[str]:
    """Run a real S3 server that hosts and this machine reach; yield its endpoint."""
    (folder / BUCKET).mkdir(parents=True)
    program = Path(sysconfig.get_path("scripts")) / "rclone"
    command = [program, "serve", "s3", "--addr", f"{GATE}:{port}", "--config", ""]
    command += ["--dir-cache-time", "1s"]  # A test may put a file into the folder.
    server = subprocess.Popen(
        [*command, "--auth-key", f"{S3_KEY},{S3_SECRET}", folder], stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://{GATE}:{port}"
    finally:
        server.terminate()
        server.wait(10)
