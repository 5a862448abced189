"""`holdfast mcp` as the official client sees it, over standard input and output, at a service."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast.mcp_server.actions import ActionTools
from holdfast.mcp_server.job_folder import JobFolder
from holdfast.sdk import AsyncClient
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.server.mcpserver.exceptions import ToolError
from sqlalchemy import Engine
from support.principals import create_principals
from support.simulated_service import JOB_FILE, SimulatedService, client, open_world, served

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

READ = {"list_jobs", "show_job", "why", "list_events", "tail_log", "search_logs", "show_bill", "list_costs", "list_prices", "forecast"}  # fmt: skip
ACT = {"submit_job", "pause_job", "resume_job", "cancel_job"}
SECRET = "hunter2-hunter2"


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> Iterator[SimulatedService]:
    """A simulated service without jobs."""
    app, parts = open_world(engine, tmp_path / "home")
    with client(app) as http:
        yield SimulatedService(app, http, *parts)


@pytest.fixture
def url(world: SimulatedService) -> Iterator[str]:
    """The address of the service."""
    with served(world) as url:
        yield url


class Session:
    """A connection to `holdfast mcp`; every result is recorded."""

    def __init__(self, client: McpClient) -> None:
        self.client = client
        self.texts: list[str] = []

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; return its JSON, or the text of its error."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        self.texts.append(content.text)  # type: ignore[union-attr]
        return self.texts[-1] if result.is_error else json.loads(self.texts[-1])


def run(
    url: str,
    folder: Path,
    use: Callable[[Session], Awaitable[None]],
    *options: str,
    token: str | None = None,
) -> list[str]:
    """Start the server, use it, and return all texts that it sent."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
        "HOLDFAST_URL": url,
        "HOLDFAST_HOME": str(folder / "no-service"),
        "HOLDFAST_CONFIG_HOME": str(folder / "config"),
        **({"HOLDFAST_TOKEN": token} if token else {}),
    }
    command = ["-m", "holdfast", "mcp", "--folder", str(folder), *options]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)

    async def main() -> list[str]:
        async with McpClient(server) as connected:
            session = Session(connected)
            await use(session)
            return session.texts

    return asyncio.run(main())


def test_tools_read_jobs_logs_costs_and_prices(
    world: SimulatedService, url: str, tmp_path: Path
) -> None:
    file = f"{JOB_FILE}envs: {{SIZE: '1'}}\nsecrets: {{HF_TOKEN: null}}\n"
    job = world.submit(file, secrets={"HF_TOKEN": SECRET})["id"]
    world.until(job, "succeeded")
    (tmp_path / "train.yaml").write_text(JOB_FILE)

    async def use(session: Session) -> None:
        tools = (await session.client.list_tools()).tools
        assert {tool.name for tool in tools} == READ
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        listed = await session.ask("list_jobs", statuses=["succeeded"])
        assert [each["id"] for each in listed["jobs"]] == [job]
        assert (await session.ask("show_job", job="tiny"))["id"] == job
        assert "succeeded" in (await session.ask("why", job=job))["history"][-1]
        events = await session.ask("list_events", job=job, limit=3)
        assert [event["kind"] for event in events["events"]][-1] == "Finished"
        assert (len(events["events"]), events["total"] > 3) == (3, True)
        assert (await session.ask("show_bill", job=job))["paid_micros"] > 0
        assert (await session.ask("list_costs"))["costs"]
        assert "prices" in await session.ask("list_prices", accelerator="A100:8", limit=2)
        assert "no such log" in await session.ask("tail_log", job=job)
        assert await session.ask("search_logs", job=job, text="loss") == {"matches": []}
        assert "not-found: no job named none" in await session.ask("show_job", job="none")
        assert "training time" in str(await session.ask("forecast", file="train.yaml"))

    assert SECRET not in "".join(run(url, tmp_path, use))


def test_actions_need_a_confirmation_of_what_was_shown(
    world: SimulatedService, url: str, tmp_path: Path
) -> None:
    (file := tmp_path / "train.yaml").write_text(JOB_FILE)

    async def use(session: Session) -> None:
        names = {tool.name for tool in (await session.client.list_tools()).tools}
        assert names == READ | ACT
        shown = await session.ask("submit_job", file="train.yaml")
        assert shown["would"] == "submit"
        assert not world.http.get("/v1/jobs").json()["jobs"]
        file.write_text(JOB_FILE.replace("num_nodes: 2", "num_nodes: 200"))
        changed = await session.ask("submit_job", file="train.yaml", confirm=shown["confirm"])
        assert "does not confirm this action" in changed
        file.write_text(JOB_FILE)
        done = await session.ask("submit_job", file="train.yaml", confirm=shown["confirm"])
        job = done["job"]["id"]
        assert [each["id"] for each in world.http.get("/v1/jobs").json()["jobs"]] == [job]
        again = await session.ask("submit_job", file="train.yaml", confirm=shown["confirm"])
        assert again["would"] == "submit", "a confirmation is valid once"

        unseen = await session.ask("cancel_job", job=job, confirm=job)
        assert unseen["would"] == "cancel", "the effect was not shown before"
        assert "confirm: 'yes'" in await session.ask("cancel_job", job=job, confirm="yes")
        assert (await session.ask("pause_job", job="tiny"))["confirm"] == job
        assert world.job(job)["state"] == "queued"
        paused = await session.ask("pause_job", job=job, confirm=job, reason="night")
        assert paused["job"]["state"] in {"pausing", "paused"}
        await asyncio.to_thread(world.until, job, "paused")
        assert (await session.ask("resume_job", job=job))["effect"].endswith("Costs arise.")
        assert (await session.ask("resume_job", job=job, confirm=job))["done"] == "resume"
        await session.ask("cancel_job", job=job)
        assert (await session.ask("cancel_job", job=job, confirm=job))["done"] == "cancel"
        await asyncio.to_thread(world.until, job, "cancelled")
        assert "cannot be cancelled" in await session.ask("cancel_job", job=job)

    run(url, tmp_path, use, "--allow-actions")


def test_tools_have_the_rights_of_the_user(world: SimulatedService, tmp_path: Path) -> None:
    principals = create_principals(world)
    token = principals.token("viewer")[0]

    async def use(session: Session) -> None:
        assert (await session.ask("show_job", job=principals.own))["id"] == principals.own
        assert "not-found" in await session.ask("show_job", job=principals.foreign)
        await session.ask("cancel_job", job=principals.own)
        refused = await session.ask("cancel_job", job=principals.own, confirm=principals.own)
        assert "forbidden" in refused or "cannot be cancelled" in refused

    with served(world) as url:
        texts = run(url, tmp_path, use, "--allow-actions", token=token)

    assert token not in "".join(texts)
    assert not world.job(principals.own)["ended_at"]


def test_confirmation_covers_the_uploaded_code(
    world: SimulatedService, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote service gets the code with the first call; a change of it needs another one."""
    monkeypatch.setattr("holdfast.mcp_server.actions.is_here", lambda _: False)
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("HOLDFAST_CONFIG_HOME", str(tmp_path))
    (tmp_path / "train.yaml").write_text(f"{JOB_FILE}workdir: code\n")
    (code := tmp_path / "code").mkdir()
    (code / "train.py").write_text("one")

    async def use() -> tuple[str, str]:
        async with AsyncClient(url) as client:
            tools = ActionTools(client, JobFolder(tmp_path))
            shown = json.loads(await tools.submit_job("train.yaml"))
            (code / "train.py").write_text("two")
            with pytest.raises(ToolError, match="does not confirm this action"):
                await tools.submit_job("train.yaml", confirm=shown["confirm"])
            (code / "train.py").write_text("one")
            return shown["effect"], await tools.submit_job("train.yaml", confirm=shown["confirm"])

    effect, done = asyncio.run(use())

    assert "Costs arise" in effect
    [job] = world.http.get("/v1/jobs").json()["jobs"]
    assert json.loads(done)["job"]["id"] == job["id"]
