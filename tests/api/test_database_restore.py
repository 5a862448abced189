"""A database restored while jobs run.

Each job continues once, and launches missing from the backup are listed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from contract.launcher_backends import eventually
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.controller.reconciler import Reconciler
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.server import backup
from holdfast.server.composition import build
from holdfast.services import Services, call_directly
from holdfast.settings import Settings, SimulatedMarketSettings
from support.simulated_service import client

FILE = """
name: {name}
resources: {{infra: local}}
run: |
  echo begun >> {folder}/{name}.runs
  exec sleep 1000
"""


class ServiceProcess:
    """One process of a service, whose reconciler runs only on request."""

    def __init__(self, settings: Settings) -> None:
        application = build(
            settings, SimulatedMarketSettings(provision_s=0.05), "http://127.0.0.1:1"
        )
        self.services: Services = replace(application.services, call_launcher=call_directly)
        self.reconciler: Reconciler = application.controller.reconciler
        self.http: TestClient = client(create_app(self.services))

    def work(self) -> None:
        asyncio.run(self.reconciler.sweep())
        asyncio.run(self.reconciler.orphan_cleaner.sweep())

    def submit(self, name: str, folder: Path) -> str:
        """The id of a submitted job whose program has started."""
        answer = self.http.post("/v1/jobs", json={"task": FILE.format(name=name, folder=folder)})
        assert answer.status_code == 201, answer.text
        runs = folder / f"{name}.runs"

        def begun() -> bool:
            self.work()
            return runs.exists()

        eventually(begun)
        return str(answer.json()["id"])

    def status(self, key: str) -> LaunchStatus:
        return asyncio.run(self.services.launchers[Engine.LOCAL].observe(key)).status

    def stop(self, *keys: str) -> None:
        for key in keys:
            asyncio.run(self.services.launchers[Engine.LOCAL].cancel(key))
        eventually(lambda: all(self.status(key) is LaunchStatus.ENDED for key in keys))


def test_a_restore_neither_stops_nor_repeats_running_jobs(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", look_every_s=0.3)
    file = tmp_path / "kept.backup"
    first = ServiceProcess(settings)
    old = first.submit("old", tmp_path)
    backup.back_up(settings, file, with_secret=True)
    newer = first.submit("young", tmp_path)
    first.services.engine.dispose()

    backup.restore(settings, file, force=True)
    second = ServiceProcess(settings)
    try:
        unswept = second.http.get("/v1/launchers").json()[0]
        for _ in range(3):
            second.work()
        [local] = [one for one in second.http.get("/v1/launchers").json() if one["strangers"]]
        states = [second.http.get(f"/v1/jobs/{job}").status_code for job in (old, newer)]
        statuses = [second.status(f"{job}-1") for job in (old, newer)]
        runs = [(tmp_path / f"{name}.runs").read_text() for name in ("old", "young")]
        stopped = second.http.post(f"/v1/launches/{newer}-1/stop")
        eventually(lambda: second.status(f"{newer}-1") is LaunchStatus.ENDED)
        second.work()
        after = second.http.get("/v1/launchers").json()
    finally:
        second.stop(f"{old}-1", f"{newer}-1")
        second.services.engine.dispose()

    assert (unswept["engine"], unswept["swept"], unswept["strangers"]) == ("local", False, [])
    assert local["swept"] is True
    assert (local["engine"], local["strange_launches"]) == ("local", [f"{newer}-1"])
    assert states == [200, 404]
    assert statuses == [LaunchStatus.UP, LaunchStatus.UP]
    assert runs == ["begun\n", "begun\n"]
    assert stopped.status_code == 202
    assert not any(one["strangers"] for one in after)
