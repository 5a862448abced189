"""Shells on nodes: who opens them, what both sides send, and what is dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from holdfast.store.database import reading
from holdfast.store.tables.launches import node_commands, node_terminals
from holdfast_worker.protocol.node_commands import CommandOutput, decode_bytes, encode_bytes
from holdfast_worker.protocol.node_shells import (
    MAX_SHELL_INPUT_BYTES,
    MAX_SHELL_OUTPUT_BYTES,
    OUTPUT_BATCH_BYTES,
    ShellInput,
)
from holdfast_worker.telemetry.service_client import ReportRejected, ServiceClient
from sqlalchemy import func, select
from support.principals import OWN, create_principals
from support.simulated_service import JOB_FILE, SimulatedService, served

RUNNER = "0123abcd"


@pytest.fixture
def job(world: SimulatedService) -> str:
    """A training job with two nodes."""
    made: str = world.submit()["id"]
    world.until(made, "training")
    return made


@pytest.fixture
def shell(world: SimulatedService, job: str) -> str:
    """A shell that its node has taken; requests are answered at once."""
    found: str = open_shell(world, job, columns=100, rows=30).json()["id"]
    assert world.services.node_commands.start(job, found, RUNNER)
    world.services.stopping.set()
    return found


def open_shell(world: SimulatedService, job: str, **body: Any) -> Any:
    return world.http.post(f"/v1/jobs/{job}/shells", json=body)


def user(world: SimulatedService, job: str, path: str, **body: Any) -> dict[str, Any]:
    answer = world.http.post(f"/v1/jobs/{job}/shells/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def write(world: SimulatedService, job: str, shell: str, at: int, keys: bytes, **more: Any) -> int:
    made = user(world, job, f"{shell}/write", at=at, data=encode_bytes(keys), **more)
    return int(made["next"])


def read(world: SimulatedService, job: str, shell: str, at: int) -> tuple[int, bytes]:
    found = user(world, job, f"{shell}/read", at=at)
    return found["at"], decode_bytes(found["data"])


def as_node(world: SimulatedService, job: str, path: str, **body: Any) -> Any:
    url, headers = f"/v1/jobs/{job}/{path}", world.worker_token(job)
    return world.http.post(url, json={"runner": RUNNER, **body}, headers=headers)


def taken(world: SimulatedService, job: str, shell: str, at: int) -> dict[str, Any]:
    answer = as_node(world, job, f"shells/{shell}/input", at=at, columns=100, rows=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def sent(world: SimulatedService, job: str, shell: str, at: int, data: bytes) -> int:
    answer = as_node(world, job, f"shells/{shell}/output", at=at, data=encode_bytes(data))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["next"])


def kept(world: SimulatedService) -> tuple[int, int]:
    """Bytes of input and of output in the database."""
    query = select(func.length(node_terminals.c.input), func.length(node_terminals.c.output))
    with reading(world.services.engine) as connection:
        row = connection.execute(query).one()
    return row[0], row[1]


def test_node_that_runs_shells_takes_one(world: SimulatedService, job: str) -> None:
    made = open_shell(world, job, node=1, command=["top"], terminal="vt100")
    body = {"node": 1, "attempt": 1}

    found = as_node(world, job, "commands/next", **body, terminals=True).json()
    world.services.stopping.set()
    older = as_node(world, job, "commands/next", **body).json()

    assert (made.status_code, made.json()["state"]) == (201, "waiting")
    assert found == {
        "id": made.json()["id"],
        "command": ["top"],
        "timeout_s": 8 * 3600,
        "terminal": "vt100",
    }
    assert older["id"] is None


def test_streams_add_nothing_twice_and_drop_what_is_confirmed(
    world: SimulatedService, job: str, shell: str
) -> None:
    for _ in range(2):  # The response of the first may have been lost.
        assert write(world, job, shell, 0, b"ls\r") == 3
    assert write(world, job, shell, 1, b"s\rpwd") == 6
    assert write(world, job, shell, 9, b"too early") == 6
    for _ in range(2):
        assert decode_bytes(taken(world, job, shell, 2)["data"]) == b"\rpwd"
    for _ in range(2):
        assert sent(world, job, shell, 0, b"a  b") == 4
    assert sent(world, job, shell, 2, b" bc") == 5

    assert read(world, job, shell, 0) == (0, b"a  bc")
    assert read(world, job, shell, 3) == (3, b"bc")
    assert read(world, job, shell, 0) == (3, b"bc")
    assert kept(world) == (4, 2)
    assert read(world, job, shell, 5) == (5, b"")
    assert decode_bytes(taken(world, job, shell, 6)["data"]) == b""
    assert kept(world) == (0, 0)


def test_streams_have_limits_and_lose_nothing(
    world: SimulatedService, job: str, shell: str
) -> None:
    data = bytes(n % 251 for n in range(MAX_SHELL_OUTPUT_BYTES + 1000))
    keys = data[: MAX_SHELL_INPUT_BYTES + 10]

    assert write(world, job, shell, 0, keys[:MAX_SHELL_INPUT_BYTES]) == MAX_SHELL_INPUT_BYTES
    assert write(world, job, shell, MAX_SHELL_INPUT_BYTES, keys[-10:]) == MAX_SHELL_INPUT_BYTES
    at = 0
    for _ in range(4):
        at = sent(world, job, shell, at, data[at : at + OUTPUT_BATCH_BYTES])
    assert at == MAX_SHELL_OUTPUT_BYTES
    assert kept(world) == (MAX_SHELL_INPUT_BYTES, MAX_SHELL_OUTPUT_BYTES)

    assert read(world, job, shell, 100) == (100, data[100:at])
    assert sent(world, job, shell, at, data[at:]) == at + 100
    assert read(world, job, shell, at) == (at, data[at : at + 100])


def test_size_end_and_silence_reach_the_node(world: SimulatedService, job: str, shell: str) -> None:
    before = taken(world, job, shell, 0)
    world.clock.advance(42)
    silent = taken(world, job, shell, 0)
    write(world, job, shell, 0, b"", columns=80, rows=20)
    resized = taken(world, job, shell, 0)
    write(world, job, shell, 0, b"", close=True)
    write(world, job, shell, 0, b"a")  # It stays closed.
    closed = taken(world, job, shell, 0)

    assert (before["columns"], before["rows"], before["closed"]) == (100, 30, False)
    assert silent["silent_s"] >= 42 > resized["silent_s"]
    assert (resized["columns"], resized["rows"], resized["closed"]) == (80, 20, False)
    assert closed["closed"]


def test_last_output_comes_with_the_end(world: SimulatedService, job: str, shell: str) -> None:
    running = user(world, job, f"{shell}/read", at=0)
    sent(world, job, shell, 0, b"bye")
    world.services.node_commands.add_output(job, shell, RUNNER, CommandOutput(exit_code=3))
    ended = user(world, job, f"{shell}/read", at=0)

    assert (running["state"], running["exit_code"]) == ("running", None)
    assert (ended["state"], ended["exit_code"], ended["detail"]) == ("ended", 3, "")
    assert decode_bytes(ended["data"]) == b"bye"
    assert taken(world, job, shell, 0)["closed"]


def test_waiting_requests_return_when_something_comes(world: SimulatedService, job: str) -> None:
    shell = open_shell(world, job).json()["id"]
    world.services.node_commands.start(job, shell, RUNNER)
    token = world.services.tokens.for_worker(job)
    found: dict[str, Any] = {}

    with served(world) as url:
        node = ServiceClient(url, job, token)
        waits = [
            threading.Thread(
                target=lambda: found.update(input=node.shell_input(shell, RUNNER, 0, (80, 24)))
            ),
            threading.Thread(target=lambda: found.update(read=read(world, job, shell, 0))),
        ]
        for thread in waits:
            thread.start()
        write(world, job, shell, 0, b"ls\r")
        first = node.send_shell_output(shell, RUNNER, 0, b"files")
        for thread in waits:
            thread.join()
        with pytest.raises(ReportRejected, match="no shell"):
            node.shell_input(shell, "ffff", 0, (80, 24))
        with pytest.raises(ReportRejected, match="no shell"):
            node.send_shell_output(shell, "ffff", 0, b"a")

    assert first == 5
    assert found["read"] == (0, b"files")
    taken_input: ShellInput = found["input"]
    assert (taken_input.data, taken_input.columns, taken_input.rows) == (b"ls\r", 80, 24)


def test_node_that_takes_no_shell_is_a_sentence(world: SimulatedService, job: str) -> None:
    shell = open_shell(world, job).json()["id"]

    world.services.leases.make_due(job, world.clock.now())
    world.clock.advance(61)

    found = user(world, job, f"{shell}/read", at=0)
    assert (found["state"], found["exit_code"]) == ("ended", None)
    assert found["detail"].endswith("or its worker is of a version without shells")


def test_node_that_left_ends_its_shell(world: SimulatedService, job: str) -> None:
    shell = open_shell(world, job).json()["id"]
    world.services.node_commands.start(job, shell, RUNNER)

    world.take_node(job, notice_s=None, then_s=2)
    world.until(job, "training")

    found = user(world, job, f"{shell}/read", at=0)
    assert (found["state"], found["detail"]) == ("ended", "node 0 left while the command ran")


def test_shell_is_recorded_without_its_keys(world: SimulatedService, job: str) -> None:
    shell = open_shell(world, job, node=1, command=["python", "-i"]).json()["id"]
    write(world, job, shell, 0, b"secret\r")

    [entry] = world.services.audit.page(limit=1)

    assert (entry.audit_action.action, entry.audit_action.target) == ("job.shell", job)
    assert entry.audit_action.after == {"node": 1, "command": ["python", "-i"]}


def test_owners_and_project_admins_use_shells(world: SimulatedService) -> None:
    principals = create_principals(world)
    with principals.person("member") as member:
        made = member.post("/v1/jobs", json={"task": JOB_FILE, "project": OWN}).json()["id"]
    world.until(made, "training")
    shell = open_shell(world, made).json()["id"]
    world.services.stopping.set()

    found = {}
    for name in ("lead", "member", "viewer", "outsider"):
        with principals.person(name) as caller:
            found[name] = [
                caller.post(f"/v1/jobs/{job}/shells{path}", json=body).status_code
                for job, path, body in (
                    (made, "", {}),
                    (made, f"/{shell}/write", {"at": 0}),
                    (made, f"/{shell}/read", {"at": 0}),
                    (principals.own, "", {}),
                    (principals.own, f"/{shell}/read", {"at": 0}),
                )
            ]

    assert found == {
        "lead": [201, 200, 200, 201, 404],
        "member": [201, 200, 200, 403, 403],  # The second job belongs to the owner of the service.
        "viewer": [403, 403, 403, 403, 403],
        "outsider": [404, 404, 404, 404, 404],
    }


def test_shells_can_be_switched_off(world: SimulatedService, job: str, shell: str) -> None:
    world.app.state.services = replace(world.services, runs_node_commands=False)

    answers = [
        open_shell(world, job),
        world.http.post(f"/v1/jobs/{job}/shells/{shell}/read", json={"at": 0}),
        world.http.post(f"/v1/jobs/{job}/shells/{shell}/write", json={"at": 0}),
        as_node(world, job, f"shells/{shell}/input", at=0, columns=0, rows=0),
    ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert "HOLDFAST_NODE_COMMANDS=true" in answers[0].json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {"terminal": "a b"}, 422),
        ("", {"columns": 0}, 422),
        ("", {"rows": 4097}, 422),
        ("", {"command": [""]}, 400),
        ("", {"command": ["a\0"]}, 400),
        ("", {"node": 2}, 409),
        ("/{shell}/write", {"at": 0, "data": "%"}, 400),
        ("/{shell}/write", {"at": -1}, 422),
        ("/c0/write", {"at": 0}, 404),
        ("/c0/read", {"at": 0}, 404),
    ],
)
def test_invalid_requests_are_refused(
    world: SimulatedService, job: str, shell: str, path: str, body: dict[str, Any], status: int
) -> None:
    url = f"/v1/jobs/{job}/shells{path.format(shell=shell)}"

    assert world.http.post(url, json=body).status_code == status


def test_damaged_output_is_refused(world: SimulatedService, job: str, shell: str) -> None:
    assert as_node(world, job, f"shells/{shell}/output", at=0, data="%").status_code == 422


def test_used_shells_are_kept_and_others_removed(world: SimulatedService, job: str) -> None:
    unused, used = (open_shell(world, job).json()["id"] for _ in range(2))
    world.clock.advance(3500)
    write(world, job, used, 0, b"a")
    world.clock.advance(200)

    newest = open_shell(world, job).json()["id"]

    with reading(world.services.engine) as connection:
        shells = set(connection.execute(select(node_commands.c.id)).scalars())
        terminals = set(connection.execute(select(node_terminals.c.command_id)).scalars())
    assert shells == terminals == {used, newest}
    assert unused not in shells


@pytest.fixture(autouse=True)
def released(world: SimulatedService) -> Iterator[None]:
    """No request of a failed test waits."""
    yield
    world.services.stopping.set()
