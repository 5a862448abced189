"""Decisions and observations from the recorded state of a launch and Slurm's reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm.launch_state import LaunchState, format_fact, parse
from holdfast.launchers.slurm.observe import observe
from holdfast.launchers.slurm.recovery import NODE_TRIES, SILENT_S, SlurmAction, SlurmPlan, decide
from holdfast.launchers.slurm.scontrol import SlurmJob
from support.fakes import FixedClock

NOW_S = 1000.0


def placed(at: float = 100, *, job: str = "7", restart: int = 0) -> dict[str, str]:
    return {"at": str(at), "job": job, "restart": str(restart), "nodes": "n1 n2"}


def left(code: int, at: float = 500, **more: str) -> dict[str, str]:
    return {"at": str(at), "code": str(code), "node": "1", "trained": "", "why": "", **more}


def launch_state(
    row: SlurmJob | None, facts: Mapping[str, Mapping[str, str]], *, silent_s: int = 0
) -> LaunchState:
    order = {"max_failures": 3, "micros_per_node_hour": 1, "partition": "spot"}
    whole = {"submitted.1": {"job": "7"}, **facts}
    return LaunchState(order=order, facts=whole, job=row, silent_s=silent_s)


def lost(plan: SlurmPlan, number: int = 1) -> object:
    return plan.facts[f"lost.{number}"]["cause"]


def test_running_job_is_up_and_needs_no_action() -> None:
    seen = launch_state(SlurmJob(state="RUNNING"), {"placed.1": placed()})

    assert decide(seen, NOW_S) == SlurmPlan()
    assert observe(seen, FixedClock().now()).status is LaunchStatus.UP


def test_requeued_job_has_lost_its_nodes() -> None:
    decision = decide(
        launch_state(SlurmJob(state="PENDING", reason="BeginTime"), {"placed.1": placed()}), NOW_S
    )

    assert lost(decision) is Cause.NODE_FAILED
    assert decision.action is None, "Slurm will place it by itself"


def test_two_attempts_between_observations_follow_each_other() -> None:
    facts = {"placed.1": placed(100), "placed.2": placed(300, restart=1)}

    decision = decide(launch_state(SlurmJob(state="RUNNING", restarts=1), facts), NOW_S)

    assert decision.facts.keys() == {"lost.1"}
    assert 100 <= float(str(decision.facts["lost.1"]["at"])) < 300


def test_requeued_job_is_a_node_failure_not_a_program_error() -> None:
    """Its ranks die of SIGTERM, which looks like an error of a trained program."""
    facts = {"placed.1": placed(), "left.1": left(143, trained="yes", why="told")}

    decision = decide(
        launch_state(SlurmJob(state="PENDING", reason="BeginTime", restarts=1), facts), NOW_S
    )

    assert lost(decision) is Cause.NODE_FAILED


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("preempted", Cause.PREEMPTED),
        ("time", Cause.LAUNCHER_RESTARTED),
        ("node", Cause.NODE_FAILED),
        ("lost", Cause.NODE_FAILED),
        ("drill", Cause.NODE_FAILED),
        ("", Cause.NODE_FAILED),
    ],
)
def test_exit_report_gives_the_cause_of_a_requeue(why: str, cause: Cause) -> None:
    facts = {"placed.1": placed(), "left.1": left(75, why=why)}

    decision = decide(
        launch_state(SlurmJob(state="PENDING", reason="BeginTime", restarts=1), facts), NOW_S
    )

    assert lost(decision) is cause
    assert decision.facts["lost.1"]["at"] == 500


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("PREEMPTED", Cause.PREEMPTED),
        ("NODE_FAIL", Cause.NODE_FAILED),
        ("BOOT_FAIL", Cause.NODE_FAILED),
        ("TIMEOUT", Cause.LAUNCHER_RESTARTED),
    ],
)
def test_job_ended_by_cluster_without_requeue_is_resubmitted(state: str, cause: Cause) -> None:
    decision = decide(launch_state(SlurmJob(state=state), {"placed.1": placed()}), NOW_S)

    assert lost(decision) is cause
    assert decision.action is SlurmAction.SUBMIT


def test_recorded_loss_without_submission_is_resubmitted() -> None:
    facts = {"placed.1": placed(), "lost.1": {"at": "500", "cause": "preempted"}}

    decision = decide(launch_state(SlurmJob(state="PREEMPTED"), facts), NOW_S)

    assert decision == SlurmPlan({}, SlurmAction.SUBMIT)


def test_fast_boot_is_not_a_program_failure() -> None:
    decision = decide(
        launch_state(SlurmJob(state="FAILED", exit_code=137), {"placed.1": placed()}), NOW_S
    )

    assert lost(decision) is Cause.NODE_FAILED
    assert decision.action is SlurmAction.SUBMIT


def test_repeated_guessed_node_failures_end_the_launch_as_failed() -> None:
    facts = {f"placed.{n}": placed(n) for n in range(1, NODE_TRIES + 2)}
    guess = {"cause": "node_failed", "guess": "yes"}
    facts |= {f"lost.{n}": {"at": str(n), **guess} for n in range(1, NODE_TRIES + 1)}

    decision = decide(launch_state(SlurmJob(state="FAILED", exit_code=137), facts), NOW_S)

    assert decision.facts["ended"]["outcome"] is Outcome.FAILED
    assert "6 times" in str(decision.facts["ended"]["detail"])


def test_program_that_never_trained_fails_with_its_last_line() -> None:
    facts = {"placed.1": placed(), "left.1": left(3, words="no module named foo")}

    decision = decide(launch_state(SlurmJob(state="FAILED", exit_code=3), facts), NOW_S)

    assert decision.facts["ended"]["detail"] == "node 1 exited with 3: no module named foo"
    assert decision.facts["ended"]["exit_code"] == 3


def test_trained_program_is_retried_up_to_max_failures() -> None:
    facts = {"placed.1": placed(), "left.1": left(3, trained="yes")}

    first = decide(launch_state(SlurmJob(state="FAILED"), facts), NOW_S)
    facts |= {f"lost.{n}": {"at": "1", "cause": "user_error"} for n in (8, 9)}
    last = decide(launch_state(SlurmJob(state="FAILED"), facts), NOW_S)

    assert lost(first) is Cause.USER_ERROR
    assert (first.action, first.failures) == (SlurmAction.SUBMIT, 1)
    assert last.facts["ended"]["outcome"] is Outcome.FAILED


def test_crash_before_a_restart_is_repaired() -> None:
    """The loss was recorded, and the service was killed before it submitted the next Slurm job."""
    facts = {"placed.1": placed(), "left.1": left(3, trained="yes")}
    recorded = {**facts, "lost.1": {"at": "500", "cause": "user_error"}}
    row = SlurmJob(state="FAILED", exit_code=3)

    plan = decide(launch_state(row, recorded), NOW_S)
    cancelled = decide(launch_state(row, {**recorded, "cancelled": {"at": "600"}}), NOW_S)

    assert plan == SlurmPlan({}, SlurmAction.SUBMIT, failures=1)
    assert cancelled.facts["ended"]["outcome"] is Outcome.CANCELLED


def test_replaced_placement_is_not_restarted() -> None:
    facts = {"placed.1": placed(), "left.1": left(76, trained="yes")}

    decision = decide(launch_state(SlurmJob(state="FAILED"), facts), NOW_S)

    assert decision.action is None
    assert decision.facts["ended"]["exit_code"] == 76


def test_worker_failure_detail_precedes_its_last_line() -> None:
    facts = {"placed.1": placed(), "left.1": left(2, words="x", said='{"detail": "no script"}')}

    decision = decide(launch_state(SlurmJob(state="FAILED"), facts), NOW_S)

    assert decision.facts["ended"]["detail"] == "node 1 exited with 2: no script"


def test_silent_node_requeues_the_job() -> None:
    facts = {"placed.1": placed()}

    patient = decide(launch_state(SlurmJob(state="RUNNING"), facts, silent_s=SILENT_S), NOW_S)
    decision = decide(launch_state(SlurmJob(state="RUNNING"), facts, silent_s=SILENT_S + 1), NOW_S)
    unresponsive = SlurmJob(state="RUNNING", was_suspended=True)

    assert patient == SlurmPlan()
    assert decision.action is SlurmAction.REQUEUE
    assert lost(decision) is Cause.NODE_FAILED
    assert decide(launch_state(unresponsive, facts, silent_s=SILENT_S + 1), NOW_S) == SlurmPlan()


def test_lost_first_node_of_a_running_job_requeues_it() -> None:
    row = SlurmJob(state="RUNNING")
    state = replace(launch_state(row, {"placed.1": placed()}), lost_first_node="n1")

    decision = decide(state, NOW_S)

    assert lost(decision) is Cause.NODE_FAILED
    assert decision.action is SlurmAction.REQUEUE


def test_lost_nodes_of_an_elastic_job_are_node_changes() -> None:
    facts = {
        "placed.1": {**placed(), "nodes": "n1 n2 n3 n4"},
        "node_lost.1.3": {"at": "200", "detail": "Slurm has lost n4"},
        "node_lost.1.1": {"at": "300", "detail": "n2 was lost to the others"},
        "placed.2": placed(500, restart=1),
        "node_lost.2.1": {"at": "600", "detail": "Slurm has lost n2"},
    }

    first, second = observe(
        launch_state(SlurmJob(state="RUNNING", restarts=1), facts), FixedClock().now()
    ).recent_placements

    assert [(c.node, c.nodes, c.micros_per_hour, c.cause) for c in first.node_changes] == [
        (3, 3, 3, Cause.NODE_FAILED),
        (1, 2, 2, Cause.NODE_FAILED),
    ]
    assert [change.nodes for change in second.node_changes] == [1]


def test_lost_node_of_an_elastic_job_may_be_silent() -> None:
    facts = "fact\tplaced.2\tat=1\036\nfact\tnode_lost.2.1\tat=5\036\n"
    beats = "beat\t3\t0\nbeat\t900\t1\n"

    assert parse(beats).silent_s == 900
    assert parse(facts + beats).silent_s == 3
    assert parse(facts + beats + "headless\tn1\n").lost_first_node == "n1"


def test_release_lost_by_slurm_is_repeated() -> None:
    """The controller was busy when the loss was recorded; without a retry, the job stays held."""
    facts = {"placed.1": placed(), "lost.1": {"at": "500", "cause": "node_failed"}}
    cancelled = {**facts, "cancelled": {"at": "600"}}

    assert decide(launch_state(SlurmJob(state="RUNNING"), facts), NOW_S) == SlurmPlan(
        {}, SlurmAction.REQUEUE
    )
    assert decide(launch_state(SlurmJob(state="RUNNING", restarts=1), facts), NOW_S) == SlurmPlan()
    assert decide(launch_state(SlurmJob(state="COMPLETING"), facts), NOW_S) == SlurmPlan()
    assert decide(launch_state(SlurmJob(state="RUNNING"), cancelled), NOW_S) == SlurmPlan()


def test_job_forgotten_by_slurm_is_decided_by_recorded_facts() -> None:
    done = decide(
        launch_state(SlurmJob.forgotten(""), {"placed.1": placed(), "left.1": left(0)}), NOW_S
    )
    accounted = decide(launch_state(SlurmJob.forgotten("NODE_FAIL"), {"placed.1": placed()}), NOW_S)
    unknown = decide(launch_state(SlurmJob.forgotten(""), {"placed.1": placed()}), NOW_S)

    assert done.facts["ended"]["outcome"] is Outcome.SUCCEEDED
    assert lost(accounted) is Cause.NODE_FAILED
    assert unknown.facts == {"forgotten": {"at": NOW_S}}


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("CANCELLED by 0", Outcome.CANCELLED),
        ("NODE_FAIL", Cause.NODE_FAILED),
        ("PREEMPTED", Cause.PREEMPTED),
        ("TIMEOUT", Cause.LAUNCHER_RESTARTED),
        ("COMPLETED", Outcome.SUCCEEDED),
        ("OUT_OF_ME+", Cause.NODE_FAILED),
    ],
)
def test_sacct_state_decides_a_requeued_and_forgotten_job(
    state: str, outcome: Outcome | Cause
) -> None:
    """sacct reports states in other words, and without restarts."""
    facts = {"placed.1": placed(), "lost.1": {"at": "200"}, "placed.2": placed(300, restart=1)}

    decision = decide(launch_state(SlurmJob.forgotten(state), facts), NOW_S)

    if isinstance(outcome, Cause):
        assert lost(decision, 2) is outcome
        assert decision.action is SlurmAction.SUBMIT
    else:
        assert decision.facts["ended"]["outcome"] is outcome


@pytest.mark.parametrize("state", ["", "RUNNING", "PENDING", "REQUEUED"])
def test_accounting_without_an_end_leaves_the_job_unknown(state: str) -> None:
    decision = decide(launch_state(SlurmJob.forgotten(state), {"placed.1": placed()}), NOW_S)

    assert decision == SlurmPlan({"forgotten": {"at": NOW_S}})


def test_script_exit_outweighs_a_node_failure() -> None:
    """With a slow login profile, Slurm requeues the job, and the first script still ends it."""
    abandoned = {"placed.1": placed(), "lost.1": {"at": "200", "cause": "node_failed"}}
    row = SlurmJob(state="FAILED", restarts=1, exit_code=9)

    own = decide(launch_state(row, {**abandoned, "left.1": left(9, words="out of memory")}), NOW_S)
    again = decide(launch_state(row, {**abandoned, "left.1": left(75, why="preempted")}), NOW_S)
    silent = decide(launch_state(row, abandoned), NOW_S)

    assert own.facts["ended"]["detail"] == "node 1 exited with 9: out of memory"
    assert again == SlurmPlan({}, SlurmAction.SUBMIT)
    assert silent.facts["ended"]["detail"] == "Slurm could not start the job: FAILED"


def test_cancel_overrides_all_but_a_completed_job() -> None:
    cancelled = {"cancelled": {"at": "400"}, "placed.1": placed()}

    ended = decide(
        launch_state(SlurmJob(state="FAILED"), {**cancelled, "left.1": left(143)}), NOW_S
    )
    done = decide(
        launch_state(SlurmJob(state="COMPLETED"), {**cancelled, "left.1": left(0)}), NOW_S
    )

    assert ended.facts["ended"]["outcome"] is Outcome.CANCELLED
    assert done.facts["ended"]["outcome"] is Outcome.SUCCEEDED


def test_job_cancelled_in_slurm_ends_the_launch() -> None:
    decision = decide(launch_state(SlurmJob(state="CANCELLED"), {"placed.1": placed()}), NOW_S)

    assert decision.facts["ended"]["outcome"] is Outcome.CANCELLED
    assert decision.action is None


def test_pending_reason_is_recorded_once_as_denial() -> None:
    row = SlurmJob(state="PENDING", reason="Resources")

    decision = decide(launch_state(row, {}), NOW_S)
    seen = launch_state(row, {"denied.Resources": {"at": "900"}})

    assert decision.facts == {"denied.Resources": {"at": NOW_S}}
    assert decide(seen, NOW_S) == SlurmPlan()
    (denial,) = observe(seen, FixedClock().now()).denials
    assert (denial.zone, denial.detail) == ("slurm/spot", "waiting in Slurm: Resources")


def test_scontrol_output_is_parsed() -> None:
    line = (
        "JobId=7 JobName=job-1 UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) "
        "Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:9 RunTime=00:00:10 EndTime=1795357060 "
        "SuspendTime=None Comment=JobState=RUNNING Power="
    )

    row = SlurmJob.parse(line)

    assert row == SlurmJob(
        state="FAILED",
        reason="NonZeroExitCode",
        restarts=2,
        exit_code=137,
        ended_s=1795357060,
    )


def test_facts_are_read_back() -> None:
    text = format_fact({"at": 1.5, "detail": "one\ntwo = 2"}).replace("\n", "\036")

    seen = parse(f'order\t{{"a": 1}}\nfact\tlost.1\t{text}\nbeat\t3\nbeat\t9\n')

    assert seen.facts == {"lost.1": {"at": "1.5", "detail": "one two = 2"}}
    assert (seen.order, seen.silent_s) == ({"a": 1}, 9)


def test_unresponsive_controller_raises_launcher_unreachable() -> None:
    with pytest.raises(LauncherUnreachable, match="Unable to contact"):
        parse("fact\tplaced.1\tat=1\ntrouble\tUnable to contact slurm controller\n")


def test_launch_cancelled_before_submission_ends_as_cancelled() -> None:
    plan = decide(launch_state(None, {"cancelled": {"at": "400"}}), NOW_S)

    assert plan.action is None
    assert plan.facts["ended"]["outcome"] is Outcome.CANCELLED
    assert plan.facts["ended"]["at"] == 400
    assert decide(launch_state(None, {}), NOW_S) == SlurmPlan()


# Where placements stand, and what they cost


def listed_launch(facts: Mapping[str, Mapping[str, str]], **order: object) -> LaunchState:
    whole = {
        "max_failures": 3,
        "micros_per_node_hour": 1_000_000,
        "partition": "preempt,lent",
        "cluster": "hpc",
        "qos": "",
        "is_spot": True,
        "prices": {"hpc/preempt": 500_000, "hpc/lent": 0},
        **order,
    }
    return LaunchState(order=whole, facts={"submitted.1": {"job": "7"}, **facts})


@pytest.mark.parametrize(
    ("partition", "micros"), [("preempt", 1_000_000), ("lent", 0), ("other", 2_000_000)]
)
def test_placement_has_the_price_of_its_partition(partition: str, micros: int) -> None:
    fact = {**placed(), "partition": partition, "cluster": "stand"}

    [found] = observe(listed_launch({"placed.1": fact}), FixedClock().now()).recent_placements

    assert (found.zone, found.is_spot) == (f"slurm/hpc/{partition}", True)
    assert found.micros_per_hour == found.on_demand_micros_per_hour == micros


def test_quality_of_service_is_part_of_the_zone() -> None:
    state = listed_launch(
        {"placed.1": {**placed(), "partition": "gpu"}, "denied.QOSMaxGRESPerUser": {"at": "90"}},
        partition="gpu",
        qos="low",
        prices={"hpc/gpu": 3_000_000, "hpc/gpu/low": 250_000},
    )

    seen = observe(state, FixedClock().now())

    assert [found.zone for found in seen.recent_placements] == ["slurm/hpc/gpu/low"]
    assert [found.micros_per_hour for found in seen.recent_placements] == [500_000]
    assert [denial.zone for denial in seen.denials] == ["slurm/hpc/gpu/low"]


def test_waiting_job_is_denied_in_each_of_its_partitions() -> None:
    state = listed_launch({"denied.Resources": {"at": "90"}})

    denials = observe(state, FixedClock().now()).denials

    assert [denial.zone for denial in denials] == ["slurm/hpc/lent", "slurm/hpc/preempt"]


def test_launch_of_an_older_version_keeps_its_price() -> None:
    fact = {**placed(), "partition": "spot", "cluster": "stand"}
    state = launch_state(None, {"placed.1": fact, "denied.Resources": {"at": "90"}})

    seen = observe(state, FixedClock().now())

    assert [found.zone for found in seen.recent_placements] == ["slurm/stand/spot"]
    assert [found.micros_per_hour for found in seen.recent_placements] == [2]
    assert [denial.zone for denial in seen.denials] == ["slurm/spot"]
