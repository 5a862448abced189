"""Metrics for alerts: what unfinished jobs wait for and risk, and what the service needs from its operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.access.audit import BACKUP
from holdfast.domain.events import SavingFailed
from holdfast.domain.jobfile.spec import Engine
from holdfast_worker.protocol.policies import OnFailure
from prometheus_client.parser import text_string_to_metric_families
from support.simulated_service import JOB_FILE, SimulatedService


def measured(world: SimulatedService, name: str) -> dict[str, float]:
    """The samples of a metric by the value of their label, empty without one."""
    families = text_string_to_metric_families(world.http.get("/metrics").text)
    samples = [sample for family in families if family.name == name for sample in family.samples]
    return {
        "/".join(text for _, text in sorted(sample.labels.items(), reverse=True)): sample.value
        for sample in samples
    }


def longest_s(world: SimulatedService, name: str) -> float:
    return measured(world, f"holdfast_{name}_seconds")[""]


def test_longest_times_are_zero_without_jobs(world: SimulatedService) -> None:
    names = ("room_wait", "nodes_wait", "startup", "silence", "unsaved")

    assert [longest_s(world, name) for name in names] == [0.0] * 5
    assert measured(world, "holdfast_training_remaining_seconds") == {}


def test_wait_for_nodes_grows_until_they_are_there(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "provisioning")

    world.clock.advance(500)

    assert longest_s(world, "nodes_wait") == pytest.approx(500, abs=5)
    world.until(job, "succeeded")  # The cloud has gone further in that time.
    assert longest_s(world, "nodes_wait") == 0


def test_wait_after_a_loss_counts_from_the_loss(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.take_node(job, notice_s=None)
    world.until(job, "recovering")

    world.clock.advance(400)

    assert longest_s(world, "nodes_wait") == pytest.approx(400, abs=5)
    assert longest_s(world, "silence") == longest_s(world, "unsaved") == 0


def test_nodes_that_do_not_train_are_reported(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "starting")

    world.clock.advance(700)

    assert longest_s(world, "startup") == pytest.approx(700, abs=5)
    world.until(job, "succeeded")
    assert longest_s(world, "startup") == 0


def test_silence_and_unsaved_work_of_jobs_in_training(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.pass_time(15)
    assert longest_s(world, "silence") < 15

    world.clock.advance(900)

    assert longest_s(world, "silence") == pytest.approx(900, abs=15)
    assert longest_s(world, "unsaved") == pytest.approx(900, abs=25)


def test_job_without_checkpoints_has_no_unsaved_work(world: SimulatedService) -> None:
    job = world.submit("name: tiny\nresources: {infra: local}\nrun: python train.py\n")["id"]
    world.until(job, "training")

    world.clock.advance(900)

    assert longest_s(world, "unsaved") == 0


def test_remaining_time_of_jobs_in_training(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    world.pass_time(25)

    remaining = measured(world, "holdfast_training_remaining_seconds")

    shown = world.job(job)["eta"]["p50"]
    assert remaining.keys() == {"min", "mean", "max"}
    assert 20 < remaining["min"] == remaining["max"] < 60, shown


@pytest.mark.parametrize(("deadline", "late"), [("45s", 1), ("10h", 0)])
def test_jobs_that_will_miss_their_deadline(
    world: SimulatedService, deadline: str, late: int
) -> None:
    job = world.submit(f"{JOB_FILE}  limits: {{deadline: {deadline}}}\n")["id"]
    world.until(job, "training")
    world.pass_time(20)

    assert measured(world, "holdfast_late_jobs")[""] == late


def test_jobs_whose_saves_fail_until_they_end(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    job = world.services.journal.read(job_id)
    failed = SavingFailed(
        at=world.clock.now(),
        attempt=1,
        step=10,
        failures=3,
        safe_step=0,
        policy=OnFailure.CONTINUE,
        detail="no space",
    )
    world.services.journal.append(job, [failed])
    assert measured(world, "holdfast_failing_save_jobs")[""] == 1

    world.until(job_id, "succeeded")

    assert measured(world, "holdfast_failing_save_jobs")[""] == 0


def test_largest_share_of_a_budget(world: SimulatedService) -> None:
    assert measured(world, "holdfast_budget_spent_ratio") == {}
    assert world.http.post("/v1/projects", json={"name": "idle"}).status_code == 201
    for scope, name, usd in (
        ("project", "default", 1.0),
        ("project", "idle", 5),
        ("user", "owner", 5),
    ):
        body = {"monthly_usd": usd, "on_reached": "warn"}
        assert world.http.put(f"/v1/budgets/{scope}/{name}", json=body).status_code == 200
    job = world.submit()["id"]
    world.until(job, "succeeded")

    shares = measured(world, "holdfast_budget_spent_ratio")

    paid_usd = world.job(job)["paid_micros"] / 1e6
    assert shares == pytest.approx({"project": paid_usd, "user": 0.0})


def test_age_of_the_last_backup(world: SimulatedService) -> None:
    assert measured(world, "holdfast_backup_age_seconds") == {}
    world.services.audit.record(BACKUP.audit_action("db.backup", ""))
    world.clock.advance(3600)

    assert measured(world, "holdfast_backup_age_seconds")[""] == pytest.approx(3600)


def test_messages_orphans_and_disk(world: SimulatedService) -> None:
    assert measured(world, "holdfast_notification_messages") == {"waiting": 0, "sent": 0, "dead": 0}
    assert measured(world, "holdfast_orphans") == {"local/ended": 0, "local/unknown": 0}
    assert measured(world, "holdfast_disk_up")[""] == 1

    world.app.state.services = replace(
        world.services, orphans=lambda: {Engine.LOCAL: 2}, disk_error=lambda: "the disk is full"
    )

    assert measured(world, "holdfast_orphans")["local/ended"] == 2
    assert measured(world, "holdfast_disk_up")[""] == 0
