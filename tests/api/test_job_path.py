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

MOST_MODULES = 13
"""Modules that get the job from another one. A lower value forbids modules of one subject; a higher value makes readers open more files."""
FORMS = (TaskIn, JobRequest, ParsedJobFile, JobSpec, RenderedTask, Submitted, Launch)
"""What a job is on its way. Answers to the caller and the state of a running job are other subjects."""
CLOUD_JOB = """
name: tiny
resources: {infra: aws, accelerators: "A100:8", use_spot: true}
num_nodes: 2
setup: pip install x
run: holdfast-worker run train.py
holdfast:
  checkpoint: {store: "s3://bucket/tiny"}
"""


def _is_handed_a_job(frame: FrameType) -> bool:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [frame.f_locals.get(name) for name in names if name not in {"self", "cls"}]
    return any(isinstance(value, FORMS) for value in given)


def _is_in_the_answer(frame: FrameType | None) -> bool:
    while frame:
        if frame.f_globals.get("__name__", "").startswith("holdfast.api.views."):
            return True
        frame = frame.f_back
    return False


@contextmanager
def handed_to() -> Iterator[set[str]]:
    """The modules of which a function is called with a job, in threads that begin inside, without the answer."""
    found: set[str] = set()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        is_ours = event == "call" and name.startswith("holdfast.")
        if is_ours and _is_handed_a_job(frame) and not _is_in_the_answer(frame):
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

    with handed_to() as found:
        answer = client(world.app).post("/v1/jobs", json={"task": file})
        asyncio.run(world.reconciler.sweep())

    assert answer.status_code == 201, answer.text
    assert {"holdfast.api.routes.jobs", "holdfast.launchers.simulated.cloud"} <= found
    assert len(found) <= MOST_MODULES, sorted(found)
