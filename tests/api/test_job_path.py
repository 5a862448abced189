"""The modules through which a job passes from the request to the rendered launch."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from holdfast.api.schemas.jobs import TaskIn
from holdfast.domain.events import Submitted
from holdfast.domain.jobfile.parser import ParsedJobFile
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.ports import Launch
from holdfast.rendering import RenderedTask
from holdfast.submission.submit import JobRequest
from support.simulated_service import JOB_FILE, SimulatedService, client

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

MOST_MODULES = 14
"""The maximum number of modules that receive the job from another module.

A lower value forbids splitting modules by subject; a higher value makes readers open more files.
"""
FORMS = (TaskIn, JobRequest, ParsedJobFile, JobSpec, RenderedTask, Submitted, Launch)
"""Types of a job on its path. Responses and the state of a running job are excluded."""
CLOUD_JOB = """
name: tiny
resources: {infra: aws, accelerators: "A100:8", use_spot: true}
num_nodes: 2
setup: pip install x
run: holdfast-worker run train.py
holdfast:
  checkpoint: {store: "s3://bucket/tiny"}
"""


def _has_a_job_argument(frame: FrameType) -> bool:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    arguments = [frame.f_locals.get(name) for name in names if name not in {"self", "cls"}]
    return any(isinstance(value, FORMS) for value in arguments)


def _builds_the_response(frame: FrameType | None) -> bool:
    while frame:
        if frame.f_globals.get("__name__", "").startswith("holdfast.api.views."):
            return True
        frame = frame.f_back
    return False


@contextmanager
def visited_modules() -> Iterator[set[str]]:
    """The modules with a function that is called with a job.

    Threads started inside count, building the response does not.
    """
    found: set[str] = set()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        is_ours = event == "call" and name.startswith("holdfast.")
        if is_ours and _has_a_job_argument(frame) and not _builds_the_response(frame):
            found.add(name)

    before = sys.getprofile()
    threading.setprofile(on_call)
    sys.setprofile(on_call)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.mark.parametrize("file", [JOB_FILE, CLOUD_JOB], ids=["local", "cloud"])
def test_job_passes_few_modules_on_its_way_to_the_launcher(
    world: SimulatedService, file: str
) -> None:
    world.services.launchers[Engine.SKYPILOT] = world.cloud  # type: ignore[index]

    with visited_modules() as found:
        answer = client(world.app).post("/v1/jobs", json={"task": file})
        asyncio.run(world.reconciler.sweep())

    assert answer.status_code == 201, answer.text
    assert {"holdfast.api.routes.jobs", "holdfast.launchers.simulated.cloud"} <= found
    assert len(found) <= MOST_MODULES, sorted(found)
