"""Removal of jobs in the API and on the command line: who may, and with which confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from holdfast.cli.app import app
from support.events import finished, launched, ready, submitted
from support.principals import FOREIGN, OWN, create_principals
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def ended(world: SimulatedService) -> str:
    job_id: str = world.submit()["id"]
    world.http.post(f"/v1/jobs/{job_id}/cancel")
    world.until(job_id, "cancelled")
    return job_id


@pytest.fixture
def commands(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


@ON_SQLITE
def test_removed_job_is_answered_with_a_sentence(world: SimulatedService, ended: str) -> None:
    first = world.http.delete(f"/v1/jobs/{ended}")
    again = world.http.delete(f"/v1/jobs/{ended}", params={"checkpoints": True})
    gone = world.http.get(f"/v1/jobs/{ended}")
    token = world.worker_token(ended)
    late = world.http.post(f"/v1/jobs/{ended}/reports", json={"attempt": 1, "reports": []}, headers=token)  # fmt: skip

    assert first.status_code == again.status_code == 202
    assert first.json()["checkpoints"] == f"s3://bucket/prefix/{ended}"
    assert again.json() == first.json()
    assert gone.status_code == late.status_code == 404
    assert "was removed at" in gone.json()["detail"]
    assert "its costs are still in" in gone.json()["detail"]
    assert world.http.get("/v1/jobs").json()["jobs"] == []
    assert world.http.get("/v1/jobs/j00000000000").json()["detail"] == "there is no job j00000000000"  # fmt: skip


@ON_SQLITE
def test_removing_a_live_job_is_refused_and_suggests_cancel(world: SimulatedService) -> None:
    job = world.submit()

    answer = world.http.delete(f"/v1/jobs/{job['id']}")

    assert answer.status_code == 409
    assert answer.json()["detail"].endswith(f"cancel it with: holdfast cancel {job['id']}")
    assert not world.job(job["id"])["can"]["remove"]["allowed"]


@ON_SQLITE
def test_members_remove_their_own_jobs_and_admins_all(world: SimulatedService) -> None:
    principals = create_principals(world)
    member, lead, outsider = (principals.person(who) for who in ("member", "lead", "outsider"))
    journal = world.services.journal
    job = journal.submit("mine", replace(submitted(), by="member", project=OWN))
    journal.append(job, [launched(1), ready(2), finished(3)])
    theirs = f"/v1/jobs/{principals.own}"
    world.http.post(f"{theirs}/cancel")
    world.until(principals.own, "cancelled")
    can = member.get(theirs).json()["can"]["remove"]

    refused = member.delete(theirs)
    own = member.delete("/v1/jobs/mine")
    allowed = lead.delete(theirs)
    hidden = outsider.get(theirs)
    foreign = lead.delete(f"/v1/jobs/{principals.job(FOREIGN)}")

    assert refused.status_code == 403
    assert can == {"allowed": False, "reason": "it belongs to another user; its owner and admins of its project may remove it"}  # fmt: skip
    assert can["reason"] in refused.json()["detail"]
    assert own.status_code == allowed.status_code == 202
    assert (hidden.status_code, "removed" in hidden.text) == (404, False)
    assert foreign.status_code == 404
    result = world.services.audit.page(limit=1)[0].audit_action
    assert (result.actor.name, result.action, result.target) == (
        "lead",
        "job.remove",
        principals.own,
    )


@ON_SQLITE
def test_remove_command_requires_confirmation(ended: str, commands: CliRunner) -> None:
    refused = commands.invoke(app, ["rm", ended])
    done = commands.invoke(app, ["rm", ended, "--yes"])
    unknown = commands.invoke(app, ["rm", "j00000000000", "--yes"])

    assert "confirm with --yes" in str(refused.exception)
    assert done.output.strip().replace("\n", "") == (
        f"removed job {ended}; its checkpoints are kept in s3://bucket/prefix/{ended}"
    )
    assert "no job named j00000000000; holdfast ps lists jobs" in str(unknown.exception)
