"""Commands on nodes: requests, roles, audit log, what workers take, and the command line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.errors import HoldfastError
from holdfast_worker.protocol.node_commands import CommandOutput, NodeCommand, decode_bytes
from holdfast_worker.telemetry.service_client import ServiceClient
from support.principals import OWN, create_principals
from support.simulated_service import JOB_FILE, SimulatedService, served
from typer.testing import CliRunner

RUNNER = "0123abcd"


@pytest.fixture
def job(world: SimulatedService) -> str:
    """A training job with two nodes."""
    made: str = world.submit()["id"]
    world.until(made, "training")
    return made


def ask(world: SimulatedService, job: str, *command: str, **fields: Any) -> Any:
    body = {"command": command or ["nvidia-smi"], **fields}
    return world.http.post(f"/v1/jobs/{job}/commands", json=body)


def as_worker(world: SimulatedService, job: str, path: str, **body: Any) -> Any:
    url, headers = f"/v1/jobs/{job}/commands/{path}", world.worker_token(job)
    return world.http.post(url, json=body, headers=headers)


def read(world: SimulatedService, job: str, command: str, **params: int) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{job}/commands/{command}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def send(world: SimulatedService, job: str, command: str, output: CommandOutput) -> Any:
    return as_worker(world, job, f"{command}/output", runner=RUNNER, **output.dump())


def test_node_takes_its_command_and_returns_output(world: SimulatedService, job: str) -> None:
    asked = ask(world, job, "ls", "-l", node=1, timeout_s=9)
    command = asked.json()["id"]

    taken = as_worker(world, job, "next", node=1, attempt=1).json()
    started = as_worker(world, job, f"{command}/start", runner=RUNNER).json()
    running = read(world, job, command)
    for _ in range(2):  # The response of the first may have been lost.
        send(world, job, command, CommandOutput(stdout=b"abc", stderr=b"e"))
    send(world, job, command, CommandOutput(stdout=b"def", stdout_at=3))
    for code in (7, 0):
        send(world, job, command, CommandOutput(exit_code=code))
    ended = read(world, job, command, stdout_from=2, stderr_from=1)

    assert (asked.status_code, asked.json()["state"]) == (201, "waiting")
    assert taken == {"id": command, "command": ["ls", "-l"], "timeout_s": 9, "terminal": None}
    assert (started, running["state"]) == ({"starts": True}, "running")
    assert (ended["state"], ended["exit_code"], ended["detail"]) == ("ended", 7, "")
    assert decode_bytes(ended["stdout"]) == b"cdef"
    assert ended["stderr"] == ""


def test_command_is_started_once(world: SimulatedService, job: str) -> None:
    command = ask(world, job).json()["id"]

    starts = [
        as_worker(world, job, f"{command}/start", runner=runner).json()["starts"]
        for runner in (RUNNER, "ffff", RUNNER)
    ]

    assert starts == [True, False, True]


def test_other_nodes_and_attempts_take_no_command(world: SimulatedService, job: str) -> None:
    ask(world, job)
    world.services.stopping.set()  # Otherwise, they wait.
    board = world.services.node_commands

    other = as_worker(world, job, "next", node=1, attempt=1).json()

    assert other["id"] is None
    assert board.next(job, 0, attempt=2) is None
    assert board.next(job, 0, attempt=0) is not None


def test_node_that_left_is_a_sentence(world: SimulatedService, job: str) -> None:
    waiting = ask(world, job).json()["id"]
    running = ask(world, job).json()["id"]
    as_worker(world, job, f"{running}/start", runner=RUNNER)

    world.take_node(job, notice_s=None, then_s=2)
    world.until(job, "training")
    started = as_worker(world, job, f"{waiting}/start", runner=RUNNER).json()

    found = [read(world, job, command) for command in (waiting, running)]
    assert [(one["state"], one["exit_code"], one["detail"]) for one in found] == [
        ("ended", None, "node 0 left before it took the command"),
        ("ended", None, "node 0 left while the command ran"),
    ]
    assert started == {"starts": False}


def test_node_that_takes_nothing_is_a_sentence(world: SimulatedService, job: str) -> None:
    command = ask(world, job).json()["id"]

    world.services.leases.make_due(job, world.clock.now())
    world.clock.advance(61)

    found = read(world, job, command)
    assert found["state"] == "ended"
    assert found["detail"].startswith("node 0 did not take the command within 60 s")


def test_command_needs_a_node(world: SimulatedService, job: str) -> None:
    beyond = ask(world, job, node=2)
    world.http.post(f"/v1/jobs/{job}/cancel")
    world.until(job, "cancelled")
    ended = ask(world, job)

    assert [answer.status_code for answer in (beyond, ended)] == [409, 409]
    assert beyond.json()["detail"] == (
        f"job {job} has no node 2: its nodes have the numbers 0 to 1"
    )
    assert ended.json()["detail"] == f"job {job} has no nodes now: it has ended"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"command": []}, 422),
        ({"command": [""]}, 400),
        ({"command": ["a\0"]}, 400),
        ({"command": ["x" * 20_000] * 2}, 400),
        ({"timeout_s": 0}, 422),
        ({"timeout_s": 3601}, 422),
        ({"node": -1}, 422),
    ],
)
def test_invalid_command_is_refused(
    world: SimulatedService, job: str, fields: dict[str, Any], status: int
) -> None:
    body = {"command": ["ls"], **fields}

    assert world.http.post(f"/v1/jobs/{job}/commands", json=body).status_code == status


def test_command_is_recorded_in_the_audit_log(world: SimulatedService, job: str) -> None:
    ask(world, job, "ls", node=1)

    [entry] = world.services.audit.page(limit=1)

    assert (entry.audit_action.action, entry.audit_action.target) == ("job.execute", job)
    assert entry.audit_action.after == {"node": 1, "command": ["ls"], "timeout_s": 60}


def test_owners_and_project_admins_run_commands(world: SimulatedService) -> None:
    """A command sees the secrets of the job."""
    principals = create_principals(world)
    with principals.person("member") as member:
        made = member.post("/v1/jobs", json={"task": JOB_FILE, "project": OWN}).json()["id"]
    world.until(made, "training")

    found = {}
    for name in ("boss", "lead", "member", "viewer", "outsider"):
        with principals.person(name) as caller:
            found[name] = [
                caller.post(f"/v1/jobs/{job}/commands", json={"command": ["ls"]}).status_code
                for job in (made, principals.own)
            ]

    assert found == {
        "boss": [201, 201],
        "lead": [201, 201],
        "member": [201, 403],  # The second job belongs to the owner of the service.
        "viewer": [403, 403],
        "outsider": [404, 404],
    }


def test_commands_can_be_switched_off(world: SimulatedService, job: str) -> None:
    services = replace(world.services, runs_node_commands=False)
    world.app.state.services = services

    answers = [ask(world, job), as_worker(world, job, "next", node=0, attempt=1)]

    assert [answer.status_code for answer in answers] == [403, 403]
    assert "HOLDFAST_NODE_COMMANDS=true" in answers[0].json()["detail"]


def test_many_commands_are_refused(
    world: SimulatedService, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.nodes.commands.MAX_OPEN", 1)
    first = ask(world, job)

    second = ask(world, job)
    world.clock.advance(3601)
    later = ask(world, job)

    assert [answer.status_code for answer in (first, second, later)] == [201, 429, 201]


def test_output_of_others_is_refused(world: SimulatedService, job: str) -> None:
    command = ask(world, job).json()["id"]
    as_worker(world, job, f"{command}/start", runner="ffff")

    not_mine = send(world, job, command, CommandOutput(exit_code=0))
    damaged = as_worker(
        world,
        job,
        f"{command}/output",
        runner="ffff",
        **{**CommandOutput().dump(), "stdout": "%"},
    )

    assert (not_mine.status_code, damaged.status_code) == (404, 422)


def test_client_of_the_worker_understands_the_service(world: SimulatedService, job: str) -> None:
    token = world.services.tokens.for_worker(job)
    command = ask(world, job, "ls", node=1).json()["id"]

    with served(world) as url:
        client = ServiceClient(url, job, token)
        taken = client.next_command(1, 1)
        starts = [client.start_command(command, runner) for runner in (RUNNER, "ffff")]
        client.send_command_output(command, RUNNER, CommandOutput(stdout=b"a", exit_code=0))

    found = read(world, job, command)
    assert taken == NodeCommand(command, ("ls",), 60)
    assert starts == [True, False]
    assert (found["state"], found["exit_code"], decode_bytes(found["stdout"])) == ("ended", 0, b"a")


# The command line


@contextmanager
def node_that_answers(world: SimulatedService, job: str, *outputs: CommandOutput) -> Iterator[None]:
    """A node that takes one command and returns this output."""

    def take() -> None:
        board = world.services.node_commands
        while not left.wait(0.05):
            if found := board.next(job, 0, 1):
                assert board.start(job, found.id, RUNNER)
                for output in outputs:
                    board.add_output(job, found.id, RUNNER, output)
                return

    left = threading.Event()
    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


@pytest.fixture
def execute(world: SimulatedService, job: str) -> Iterator[Callable[..., Any]]:
    with served(world) as url:

        def invoke(*words: str) -> Any:
            return CliRunner().invoke(app, ["exec", job, *words], env={"HOLDFAST_URL": url})

        yield invoke


def test_exec_prints_output_and_exits_like_the_command(
    world: SimulatedService, job: str, execute: Callable[..., Any]
) -> None:
    outputs = (
        CommandOutput(stdout=b"out\n", stderr=b"err\n"),
        CommandOutput(exit_code=9, detail="it was cut"),
    )
    with node_that_answers(world, job, *outputs):
        done = execute("--", "ls", "-l")

    assert (done.exit_code, done.stdout) == (9, "out\n")
    assert done.stderr == "err\nnote: it was cut\n"


def test_exec_names_what_is_wrong(execute: Callable[..., Any]) -> None:
    no_node = execute("--node", "5", "--", "ls")
    timeout = execute("--timeout", "2h", "--", "ls")
    unreadable = execute("--timeout", "soon", "--", "ls")

    assert "has no node 5" in str(no_node.exception)
    assert "timeout_s" in str(timeout.exception)
    assert "write a time such as 45s" in str(unreadable.exception)
    assert all(isinstance(e.exception, HoldfastError) for e in (no_node, timeout, unreadable))
