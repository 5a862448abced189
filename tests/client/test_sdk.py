"""The SDK: errors as exceptions, repetition, pages, both clients, and models in step with the API."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from holdfast import errors
from holdfast.api.problems import problem_of
from holdfast.client.calls import EventStream, Pages, endpoint, sequence
from holdfast.client.resources import AsyncClientResources, ClientResources
from holdfast.sdk import (
    AsyncClient,
    Client,
    NoAnswer,
    Refused,
    ServiceUnreachable,
    models,
    read_task,
)
from pydantic import BaseModel
from support.simulated_service import JOB_FILE, SimulatedService

ROOT = Path(__file__).parents[2]
API = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
NOT_IN_THE_SDK = {
    "POST /v1/jobs/{job_id}/muster": "workers",
    "POST /v1/jobs/{job_id}/reports": "workers",
    "POST /v1/jobs/{job_id}/rendezvous": "workers",
    "POST /v1/jobs/{job_id}/commands/next": "workers",
    "POST /v1/jobs/{job_id}/commands/{command_id}/start": "workers",
    "POST /v1/jobs/{job_id}/commands/{command_id}/output": "workers",
    "POST /v1/jobs/{job_id}/shells/{shell_id}/input": "workers",
    "POST /v1/jobs/{job_id}/shells/{shell_id}/output": "workers",
    "POST /v1/code/trees": "upload_code",
    "PUT /v1/code/pieces/{digest}": "upload_code",
    "POST /v1/code/pieces": "upload_code",
    "GET /v1/session": "browsers",
    "POST /v1/session": "browsers",
    "DELETE /v1/session": "browsers",
    "GET /v1/sign-in": "browsers",
    "GET /v1/stream": "the dashboard",
    "GET /metrics": "Prometheus",
    "GET /docs/{name}": "browsers",
}
"""Routes without a method, with who uses them."""
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.HoldfastError)
]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
NOW = (0.0, 0.0)
"""Two repetitions without a pause."""


def problem(kind: type[errors.HoldfastError], **changes: Any) -> httpx2.Response:
    issues = (errors.ValidationIssue("#/run", "is missing; add it"),)
    error = kind(issues) if issubclass(kind, errors.BadJobFile) else kind("no, because")
    body = {**problem_of(error).model_dump(exclude_none=True), "request_id": "r1", **changes}
    return httpx2.Response(kind.status, json=body)


def client(answer: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> Client:
    options = {"retry_pauses_s": NOW, **options}
    return Client("http://service", transport=httpx2.MockTransport(answer), **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_of_problem_is_an_exception_class(kind: type[errors.HoldfastError]) -> None:
    with (
        client(lambda _: problem(kind), retry_pauses_s=()) as service,
        pytest.raises(kind) as raised,
    ):
        service.jobs.get("j1")

    error = raised.value
    assert isinstance(error, Refused)
    assert (error.code, error.hint, error.request_id) == (kind.slug(), kind.title(), "r1")
    assert error.exit_code == kind.exit_code
    is_file = issubclass(kind, errors.BadJobFile)
    assert error.field == ("#/run" if is_file else None)
    assert str(error) == ("#/run: is missing; add it" if is_file else "no, because")


def test_problem_of_a_newer_service_is_refused_with_its_code() -> None:
    answer = problem(errors.Conflict, type="/docs/errors#too-new")

    with client(lambda _: answer) as service, pytest.raises(Refused) as raised:
        service.jobs.get("j1")

    assert type(raised.value) is Refused
    assert raised.value.code == "too-new"


class Faulty:
    """Answers with faults first, and records the keys of all requests."""

    def __init__(self, *faults: httpx2.Response | Exception) -> None:
        self.faults = list(faults)
        self.keys: list[str | None] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.keys.append(request.headers.get("Idempotency-Key"))
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            # A copy: a client wraps the stream of the response that it receives.
            return httpx2.Response(fault.status_code, headers=fault.headers, content=fault.content)
        return httpx2.Response(200, json={"status": "ok", "version": "1"})


LOST = httpx2.ReadError("connection reset")
BUSY = problem(errors.StoreUnavailable)
GATEWAY = httpx2.Response(502, text="<html>")


@pytest.mark.parametrize("fault", [LOST, BUSY, GATEWAY, problem(errors.TooManyRequests)])
def test_reading_request_is_repeated_after_temporary_fault(
    fault: httpx2.Response | Exception,
) -> None:
    faulty = Faulty(fault, fault)

    with client(faulty) as service:
        assert service.service.health().status == "ok"

    assert len(faulty.keys) == 3


def test_request_is_given_up_after_the_last_pause() -> None:
    faulty = Faulty(*[LOST] * 9)

    with client(faulty) as service, pytest.raises(NoAnswer, match="connection reset"):
        service.service.health()

    assert len(faulty.keys) == 3


@pytest.mark.parametrize(("fault", "requests"), [(LOST, 1), (BUSY, 1), (GATEWAY, 1), (problem(errors.TooManyRequests), 2)])  # fmt: skip
def test_request_with_an_effect_is_repeated_only_if_refused(
    fault: httpx2.Response | Exception, requests: int
) -> None:
    """The service may have acted although its response was lost."""
    faulty = Faulty(fault)

    with client(faulty) as service, pytest.raises(errors.HoldfastError):
        service.jobs.cancel("j1")  # The final answer is no job, which ends the test, too.

    assert len(faulty.keys) == requests


def test_submission_is_repeated_under_the_same_key() -> None:
    faulty = Faulty(LOST, BUSY)

    with client(faulty) as service, pytest.raises(ServiceUnreachable, match="not a Holdfast"):
        service.jobs.submit(models.TaskIn(task="run: x"))  # The final answer is no job.

    [key] = set(faulty.keys)
    assert len(faulty.keys) == 3
    assert key


def test_retry_after_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("holdfast.client.connection.time", SimpleNamespace(sleep=waits.append))
    busy = [httpx2.Response(429, content=problem(errors.TooManyRequests).content, headers={"Retry-After": text}) for text in ("7", "9999")]  # fmt: skip

    with client(Faulty(*busy), retry_pauses_s=(1, 2)) as service:
        service.service.health()

    assert waits == [7, 60]


@ON_SQLITE
def test_wait_ends_with_a_condition_or_a_timeout(world: SimulatedService, url: str) -> None:
    job = world.submit()["id"]

    with Client(url) as service:
        assert service.jobs.wait(job, lambda job: job.state == "queued").id == job
        with pytest.raises(TimeoutError, match=f"job {job} is queued after 0 s; it continues"):
            service.jobs.wait(job, timeout_s=0)


def test_unreadable_job_file_is_named(tmp_path: Path) -> None:
    (broken := tmp_path / "train.yaml").write_bytes(b"\xff")

    with pytest.raises(errors.BadRequest, match=r"train\.yaml is not UTF-8 text"):
        read_task(broken)
    with pytest.raises(errors.BadRequest, match="give the path of a job file"):
        read_task(tmp_path / "none.yaml")


@ON_SQLITE
def test_pages_are_read_one_after_the_other(
    world: SimulatedService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.jobs.MAX_PAGE", 2)
    for _ in range(5):
        world.submit()
    submitted = [job["id"] for job in world.http.get("/v1/jobs").json()["jobs"]]

    async def ask() -> list[str]:
        async with AsyncClient(url) as service:
            return [job.id async for job in service.jobs.find(statuses=["queued"])]

    with Client(url) as service:
        assert [job.id for job in service.jobs.find()] == submitted
        assert [job.id for job in islice(service.jobs.find(), 3)] == submitted[:3]
        assert list(service.jobs.find(statuses=["failed"])) == []
    assert asyncio.run(ask()) == submitted


@ON_SQLITE
def test_async_client_follows_waits_and_raises(
    world: SimulatedService, url: str, passing_time: None
) -> None:
    async def run() -> tuple[list[str], str, list[models.EventOut]]:
        async with AsyncClient(url) as service:
            assert await service.is_healthy()
            job = await service.jobs.submit(models.TaskIn(task=JOB_FILE))
            kinds = [event.kind async for event in service.jobs.follow_events(job.id)]
            job = await service.jobs.wait(await service.jobs.resolve(job.name), poll_s=0.01)
            with pytest.raises(errors.NotFound):
                await service.jobs.get("j-unknown")
            with pytest.raises(errors.NotFound):
                [_ async for _ in service.jobs.follow_log("j-unknown")]
            return kinds, job.state, await service.jobs.events(job.id)

    kinds, state, events = asyncio.run(run())

    assert state == "succeeded"
    assert kinds == [event.kind for event in events][: len(kinds)]
    assert kinds[-1] == "Finished"


def test_async_stream_resumes_after_the_last_message() -> None:
    positions: list[str | None] = []

    def service(request: httpx2.Request) -> httpx2.Response:
        positions.append(request.headers.get("last-event-id"))
        text = (
            f'event: log\ndata: {{"attempt":1,"text":"{len(positions)}"}}\nid: {len(positions)}\n\n'
        )
        end = "event: end\ndata: {}\n\n" if len(positions) == 2 else ""
        return httpx2.Response(200, text=text + end)

    async def read() -> list[str]:
        transport = httpx2.MockTransport(service)
        async with AsyncClient("http://service", transport=transport) as client:
            return [chunk.text async for chunk in client.jobs.follow_log("j1")]

    assert asyncio.run(read()) == ["1", "2"]
    assert positions == [None, "1"]


def test_async_client_repeats_requests() -> None:
    faulty = Faulty(LOST, BUSY)

    async def ask() -> str:
        transport = httpx2.MockTransport(faulty)
        async with AsyncClient("http://s", transport=transport, retry_pauses_s=NOW) as service:
            return (await service.service.health()).status

    assert asyncio.run(ask()) == "ok"
    assert len(faulty.keys) == 3


def test_both_clients_have_the_same_methods() -> None:
    blocking, awaited = ClientResources(None), AsyncClientResources(None)  # type: ignore[arg-type]
    subjects = vars(blocking).keys()

    def public(value: object) -> set[str]:
        return {name for name in dir(value) if not name.startswith("_")}

    assert subjects == vars(awaited).keys()
    for name in subjects:
        assert public(getattr(blocking, name)) == public(getattr(awaited, name)), name
    assert public(Client) == public(AsyncClient)


class Recorder:
    """A client that records calls and sends nothing."""

    def __init__(self) -> None:
        self.routes: set[str] = set()

    def call(self, call: Any) -> None:
        self.routes.add(f"{call.method} {call.path}")

    def iterate(self, many: Any) -> None:
        if isinstance(many, Pages):
            self.call(many.first)
        elif isinstance(many, EventStream):
            self.routes.add(f"GET {many.path}")


def _argument(name: str, annotation: str) -> Any:
    model = getattr(models, annotation, None)
    if model is not None and issubclass(model, BaseModel):
        return model.model_construct(**dict.fromkeys(model.model_fields))
    return {} if "Mapping" in annotation else 1 if annotation == "int" else "x"


def test_every_route_for_users_has_a_method() -> None:
    recorder = Recorder()
    resources = ClientResources(recorder)
    subjects = [value for name, value in vars(resources).items() if not name.startswith("_")]
    for subject in [*subjects, resources.channels("x")]:
        for name in dir(type(subject)):
            method = inspect.getattr_static(type(subject), name)
            if isinstance(method, endpoint | sequence):
                parameters = inspect.signature(method.__wrapped__).parameters.values()
                needed = {
                    each.name: _argument(each.name, str(each.annotation))
                    for each in list(parameters)[1:]
                    if each.default is each.empty and each.kind is not each.VAR_KEYWORD
                }
                for scope in ("service", "project", "user"):
                    getattr(subject, name)(
                        **needed | ({"scope": scope} if "scope" in needed else {})
                    )
    verbs = {f"{verb.upper()} {path}" for path, found in API["paths"].items() for verb in found}
    missing = {
        route
        for route in verbs
        if not any(
            re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), each) for each in recorder.routes
        )
    }

    assert missing == NOT_IN_THE_SDK.keys()


def test_every_schema_of_the_api_is_a_model_of_the_sdk() -> None:
    folder = ROOT / "service/holdfast/api/schemas"
    others = "".join((folder / f"{name}.py").read_text() for name in ("workers", "code_uploads"))
    bodies = {
        name for name, each in API["components"]["schemas"].items() if each.get("type") == "object"
    }

    missing = {
        name for name in bodies if not hasattr(models, name) and f"class {name}(" not in others
    }
    assert missing == set()


def test_models_and_reference_are_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "sdk_reference.py", "--check"], check=False)  # fmt: skip

    assert done.returncode == 0, "run: python docs/sdk_reference.py"


@pytest.mark.full  # Type checking takes ten seconds of CPU time.
def test_results_have_types_in_both_clients(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
from collections.abc import AsyncIterator, Iterator
from typing import assert_type
from holdfast.sdk import AsyncClient, Client, models

def blocking(client: Client) -> None:
    assert_type(client.jobs.get("j1"), models.JobOut)
    assert_type(client.jobs.find(statuses=["failed"]), Iterator[models.JobOut])
    assert_type(client.jobs.wait("j1"), models.JobOut)

async def awaited(client: AsyncClient) -> None:
    assert_type(await client.jobs.get("j1"), models.JobOut)
    assert_type(client.jobs.find(text="x"), AsyncIterator[models.JobOut])
    client.jobs.find(status="failed")
    await client.jobs.get(1)
"""
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(program)]  # fmt: skip

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    found = [re.sub(r".*program\.py:", "", line) for line in done.stdout.splitlines() if "program.py" in line and "error" in line]  # fmt: skip
    assert [line.partition(":")[0] for line in found] == ["14", "15"], done.stdout
