"""Tools that change jobs: each shows its effect first, and acts after a confirmation."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from holdfast.addresses import is_here
from holdfast.api.schemas.jobs import JobOut, RenderTaskIn, TaskIn
from holdfast.errors import BadRequest, NotPossibleNow
from holdfast.mcp_server.job_folder import JobFolder
from holdfast.mcp_server.read_tools import Job
from holdfast.mcp_server.results import summary, tool
from holdfast.sdk import AsyncClient, Client, upload_code

EFFECTS: Final = {
    "cancel": "The job ends for good. Its worker saves a last checkpoint first if possible; `holdfast retry` can continue from it.",
    "pause": "The job saves a checkpoint, releases its nodes, and waits until it is resumed. No further costs arise.",
    "resume": "The job asks for nodes again and continues from its newest checkpoint. Costs arise.",
}
"""What each action does, as the first call of its tool says it."""

Confirm = Annotated[
    str | None,
    Field(
        description="Omit it in the first call, which changes nothing and returns what would happen. "
        "After the user has agreed, repeat the value of `confirm` that it returned."
    ),
]
Reason = Annotated[
    str | None, Field(description="Reason, shown in the job's history.", max_length=400)
]


class ActionTools:
    """Tools that act with the user's token, each after a first call that shows its effect."""

    def __init__(self, client: AsyncClient, folder: JobFolder) -> None:
        self._client = client
        self._folder = folder
        self._session = secrets.token_hex(8)
        self._shown: set[tuple[str, str]] = set()
        """Actions and confirmations that a first call has shown and that were not carried out yet."""

    @tool
    async def cancel_job(self, job: Job, reason: Reason = None, confirm: Confirm = None) -> Any:
        """Cancel a job for good."""
        return await self._act("cancel", job, reason, confirm)

    @tool
    async def pause_job(self, job: Job, reason: Reason = None, confirm: Confirm = None) -> Any:
        """Pause a job: save a checkpoint and release its nodes."""
        return await self._act("pause", job, reason, confirm)

    @tool
    async def resume_job(self, job: Job, reason: Reason = None, confirm: Confirm = None) -> Any:
        """Resume a paused job from its newest checkpoint."""
        return await self._act("resume", job, reason, confirm)

    async def _act(self, action: str, job: str, reason: str | None, confirm: str | None) -> Any:
        found = await self._client.jobs.get(await self._client.jobs.resolve(job))
        if not self._is_confirmed(action, found.id, confirm):
            return self._preview(action, found)
        why = f"{reason or f'{action} requested'} (through MCP)"
        calls = {
            "cancel": self._client.jobs.cancel,
            "pause": self._client.jobs.pause,
            "resume": self._client.jobs.resume,
        }
        return {"done": action, "job": summary(await calls[action](found.id, why))}

    def _preview(self, action: str, job: JobOut) -> dict[str, Any]:
        can = job.can.get(action)
        if can is not None and not can.allowed:
            raise NotPossibleNow(f"job {job.id} cannot be {_DONE[action]}: {can.reason}")
        return {
            "would": action,
            "effect": EFFECTS[action],
            "job": summary(job),
            "confirm": self._show(action, job.id),
            "next": "Nothing has changed. Show this to the user; if they agree, call again with `confirm`.",
        }

    @tool
    async def submit_job(
        self,
        file: Annotated[str, Field(description="Path of a job file (.yaml).")],
        name: Annotated[str | None, Field(description="Name instead of the file's.")] = None,
        project: Annotated[str | None, Field(description="Project instead of the file's.")] = None,
        confirm: Confirm = None,
    ) -> Any:
        """Submit a job file, which rents nodes."""
        task = self._folder.read(file, name)
        task.project = project
        if not is_here(self._client.url):
            self._folder.check_workdir(task)
            await asyncio.to_thread(_upload, task)
        token = f"{Path(file).name}-{_digest(task)}"
        if not self._is_confirmed("submit", token, confirm):
            return await self._preview_submission(task, token)
        job = await self._client.jobs.submit(task, f"mcp-{self._session}-{_digest(task)}")
        return {"done": "submit", "job": summary(job), "notes": job.notes}

    async def _preview_submission(self, task: TaskIn, token: str) -> dict[str, Any]:
        asked = RenderTaskIn(**task.model_dump(exclude_unset=True), prices=True)
        rendered = await self._client.jobs.render(asked)
        if rendered.refused:
            raise BadRequest(f"the service would refuse this job: {'; '.join(rendered.refused)}")
        return {
            "would": "submit",
            "effect": "The job starts as soon as there are nodes. Costs arise until it ends.",
            "launcher": rendered.engine,
            "estimate": rendered.estimate,
            "notes": rendered.notes,
            "confirm": self._show("submit", token),
            "next": "Nothing has changed. Show this to the user; if they agree, call again with `confirm`.",
        }

    def _show(self, action: str, token: str) -> str:
        self._shown.add((action, token))
        return token

    def _is_confirmed(self, action: str, token: str, confirm: str | None) -> bool:
        """Whether a first call has shown this action, and this call confirms it.

        Raises:
            BadRequest: the confirmation is that of another job or of another version of the file.
        """
        if confirm is None:
            return False
        if confirm != token:
            raise BadRequest(
                f"confirm: {confirm!r} does not confirm this action; call the tool without it, and repeat the value that it returns"
            )
        if (action, token) not in self._shown:
            return False
        self._shown.remove((action, token))
        return True


_DONE: Final = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def _upload(task: TaskIn) -> None:
    """Upload the code of a job file; only what the service lacks is sent, and nothing starts."""
    with Client.from_environment() as client:
        upload_code(client, task, upload=True)


def _digest(task: TaskIn) -> str:
    """A digest of all that is submitted, with its code: a change needs another confirmation."""
    return hashlib.sha256(task.model_dump_json(exclude_none=True).encode()).hexdigest()[:12]


ACTION_TOOLS: Final = ("submit_job", "pause_job", "resume_job", "cancel_job")
"""Names of the methods that are tools."""
