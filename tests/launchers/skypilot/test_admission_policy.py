"""The admission policy in the real SkyPilot: each launch is admitted once, others always."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast.launchers.skypilot.admission import PROBE
from holdfast.launchers.skypilot.task_body import TOKEN_ENV
from holdfast.skypilot_server import GATE, SOURCE, install_gate, write_gate_address
from support.requirements import skip_or_fail
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do
from support.skypilot.real import PYTHON, NotHere, demand_skypilot

SECRET = "5" * 32
ELSEWHERE = (
    "jobs.launch_cluster",
    "jobs.launch_controller",
    "launch",
    "exec",
    "optimize",
    "serve.up",
)


class PolicyRunner:
    """A process with the policy in the real SkyPilot, and a server that imitates Holdfast."""

    harness: SkyPilotHarness

    def __init__(self, folder: Path) -> None:
        self.home = folder / "sky-home"
        self.policy_requests = 0
        packages = folder / "packages"
        install_gate(packages)
        (self.home / ".sky").mkdir(parents=True)
        (self.home / ".sky/config.yaml").write_text(f"admin_policy: {GATE}\n")
        # A network namespace without a route: SkyPilot cannot reach other machines.
        inside = 'ip link set lo up && exec "$0" "$@"'
        program = [
            str(PYTHON),
            str(Path(__file__).parents[2] / "support/skypilot/policy_runner.py"),
            str(packages),
        ]
        self._process = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", inside, *program],
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port: int = self._receive()

    def begin_test(self, harness: SkyPilotHarness) -> None:
        """Answer the policy's requests by another service from now on."""
        self.harness, self.policy_requests = harness, 0
        self.set_gate_port(self.port)

    def run(self, name: str, task: dict[str, Any], *, at_client_side: bool = False) -> dict[str, Any]:  # fmt: skip
        """Run the policy on a request: `passed` with the task, or `refused` with the reason."""
        self._send({"name": name, "task": task, "at_client_side": at_client_side})
        while "asked" in (result := self._receive()):
            self.policy_requests += 1
            assert result["path"] == f"/v1/skypilot/policy/{SECRET}"
            status, body = self.harness.policy(result["asked"].encode())
            self._send({"status": status, "body": body})
        answer: dict[str, Any] = result
        return answer

    def set_gate_port(self, port: int) -> None:
        write_gate_address(self.home, f"http://127.0.0.1:{port}/v1/skypilot/policy/{SECRET}")

    def close(self) -> None:
        self._process.communicate()

    def _send(self, value: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "SkyPilot has died"
        return json.loads(line)


@pytest.fixture(scope="module")
def one_sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyRunner]:
    """A process for all tests, because importing SkyPilot takes seconds."""
    try:
        demand_skypilot()
    except NotHere as reason:
        skip_or_fail(str(reason))
    sky = PolicyRunner(tmp_path_factory.mktemp("sky"))
    yield sky
    sky.close()


@pytest.fixture
def sky(one_sky: PolicyRunner, new_harness: NewSkyPilotHarness) -> PolicyRunner:
    one_sky.begin_test(new_harness())
    return one_sky


def task_with(token: str | None) -> dict[str, Any]:
    envs = {"A": "b", **({TOKEN_ENV: token} if token else {})}
    return {"name": "job", "run": "echo hello", "envs": envs, "secrets": {"KEY": "CANARY"}}


def token_of(harness: SkyPilotHarness, key: str = "job-1") -> str:
    return harness.book.token(harness.book.open(key, key.rpartition("-")[0], harness.clock.now()))


def test_launch_token_is_admitted_once_and_other_requests_pass(sky: PolicyRunner) -> None:
    task = task_with(token_of(sky.harness))

    first, second = sky.run("jobs.launch", task), sky.run("jobs.launch", task)

    assert task.items() <= first["passed"].items()
    assert "this launch token was used" in second["refused"]
    assert SECRET not in second["refused"]
    assert sky.policy_requests == 2
    for name in ELSEWHERE:
        assert "passed" in sky.run(name, task), name
        assert "passed" in sky.run(name, task_with(None)), name
    assert "passed" in sky.run("jobs.launch", task_with(None))
    assert "passed" in sky.run("jobs.launch", task, at_client_side=True), "its server asks again"
    assert sky.policy_requests == 2


def test_probe_is_admitted_once_but_recovery_validation_passes(sky: PolicyRunner) -> None:
    """A jobs controller of SkyPilot 0.14.1 validates each recovery with the launch token."""
    probe, launch = task_with(token_of(sky.harness, PROBE)), task_with(token_of(sky.harness))

    once, twice = sky.run("validate", probe), sky.run("validate", probe)
    recovery = sky.run("validate", launch)

    assert ("passed" in once, "refused" in twice, "passed" in recovery) == (True, True, True)
    assert sky.policy_requests == 2


def test_launches_fail_and_recoveries_pass_while_service_is_down(sky: PolicyRunner) -> None:
    task = task_with(token_of(sky.harness))
    sky.set_gate_port(1)

    launch = sky.run("jobs.launch", task)
    recovery = [sky.run(name, task) for name in ("launch", "validate", "jobs.launch_cluster")]
    sky.set_gate_port(sky.port)
    later = sky.run("jobs.launch", task)

    assert "Failed to call admin policy URL" in launch["refused"]
    assert SECRET not in launch["refused"]
    assert all("passed" in answer for answer in recovery)
    assert "passed" in later, "the token was not used up, and the address is read again"


def test_without_address_launches_fail_and_others_pass(sky: PolicyRunner) -> None:
    (sky.home / ".sky/holdfast-gate").unlink()

    launch = sky.run("jobs.launch", task_with(token_of(sky.harness)))

    assert "holdfast-gate ([Errno 2] " in launch["refused"]
    assert "admin policy" in launch["refused"], "the doctor recognizes a blocking gate by this word"
    assert "passed" in sky.run("jobs.launch", task_with(None))


@pytest.mark.parametrize("has_module", [True, False])
def test_guarantee_probe_detects_if_skypilot_waits_for_service(
    new_harness: NewSkyPilotHarness, has_module: bool
) -> None:
    harness = new_harness()
    harness.state.has_module = has_module

    vitals = [do(harness.launcher.engine_info()) for _ in range(2)]

    assert [each.guarantee for each in vitals] == ["exactly-once"] * 2
    assert [each.waits_for_service for each in vitals] == [not has_module] * 2
    assert len(harness.posted("/validate")) == 2, "a positive probe is cached for a while"
    harness.clock.advance(3600)
    harness.state.has_module = not has_module
    assert do(harness.launcher.engine_info()).waits_for_service is has_module


def test_skypilot_without_plugin_does_not_wait_for_service(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(gated=False)

    assert do(harness.launcher.engine_info()).waits_for_service is False


def test_plugin_is_standalone_and_shares_constants_with_service() -> None:
    """The plugin runs where Holdfast is not installed, so that it repeats some constants."""
    tree = ast.parse(SOURCE.read_text())
    found = {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }

    assert found["TOKEN_ENV"] == TOKEN_ENV
    assert found["PROBE_TOKEN"] == f"hfl_{PROBE}_"
    assert imported == {"__future__", "re", "pathlib", "typing", "sky"}
    assert f"{SOURCE.stem}.Gate" == GATE


def test_plugin_is_written_only_if_it_differs(tmp_path: Path) -> None:
    written = [install_gate(tmp_path), install_gate(tmp_path)]
    (tmp_path / SOURCE.name).write_bytes(b"\xff of yesterday")
    written.append(install_gate(tmp_path))

    assert written == [True, False, True]
    assert (tmp_path / SOURCE.name).read_bytes() == SOURCE.read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / SOURCE.name]


def test_address_file_is_private(tmp_path: Path) -> None:
    write_gate_address(tmp_path, "http://127.0.0.1:1/x")

    file = tmp_path / ".sky/holdfast-gate"
    assert file.read_text() == "http://127.0.0.1:1/x\n"
    assert file.stat().st_mode & 0o777 == 0o600
