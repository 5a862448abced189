"""Other nodes for a paused job: its state, its ranks, and what refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from holdfast.domain.events import (
    CapacityType,
    Cause,
    Event,
    LaunchPlacement,
    Resized,
    current_submission,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobs.commands import resume
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.resize import (
    RankChange,
    resize_refusal,
    retention_refusal,
    store_refusal,
)
from holdfast.errors import IllegalTransition, NotPossibleNow
from support.events import (
    at,
    finished,
    launched,
    lost,
    paused,
    pausing,
    ready,
    resumed,
    submitted,
    training,
)

PAUSED = (
    submitted(nodes=(None, 2)),
    launched(1),
    ready(2),
    training(3),
    pausing(4),
    lost(5, cause=Cause.PAUSED),
    paused(5),
)
MANIFEST = {"world_size": 8, "nodes": 2, "loader": {"batch_size": 16}, "per_rank": []}


def resized(seconds: float = 6, **changes: Any) -> Resized:
    """A resize to four nodes on Slurm, unless `changes` say otherwise."""
    spec = {"name": "tiny-gpt", "run": "x", "num_nodes": 4, "resources": {"infra": "slurm"}}
    return Resized(at=at(seconds), spec=spec | changes, task="name: tiny", micros_per_hour=7)


def spec_of(**values: Any) -> JobSpec:
    resources = {"infra": "aws/us-east-1", "accelerators": "A100:4"}
    return JobSpec(**{"name": "a", "run": "x", "num_nodes": 2, "resources": resources} | values)


def saved_in(store: str, infra: str, **values: Any) -> JobSpec:
    block = {"checkpoint": {"store": store}}
    return spec_of(resources={"infra": infra}, holdfast=block, **values)


def test_resize_changes_what_the_next_launch_asks_for() -> None:
    events = (*PAUSED, resized(min_nodes=2), resumed(7), launched(8, launch=2))

    job = fold("job-1", events)

    assert (job.engine, job.min_nodes, job.micros_per_hour) == (Engine.SLURM, 2, 7)
    assert (job.spec_seq, job.state) == (8, State.PROVISIONING)
    assert (job.engine_of_launch(1), job.engine_of_launch(2)) == (Engine.LOCAL, Engine.SLURM)
    assert current_submission(events).spec["num_nodes"] == 4
    assert current_submission(PAUSED) == PAUSED[0]


def test_resize_forgets_the_plan_and_pace_of_the_old_nodes() -> None:
    placement = LaunchPlacement(capacity=CapacityType.SPOT, places=("aws/us-east-1",))
    before = replace(fold("job-1", PAUSED), placement=placement)

    after = advance(before, resized(resources={"infra": "local"}))

    assert (after.plan, after.placement, after.pace.steps) == (None, None, 0)
    assert after.launcher_changes == ()


@pytest.mark.parametrize("events", [PAUSED[:1], PAUSED[:4], PAUSED[:5], (*PAUSED[:4], finished(9))])
def test_only_a_paused_job_is_resized(events: tuple[Event, ...]) -> None:
    job = fold("job-1", events)

    with pytest.raises(IllegalTransition):
        advance(job, resized(10))

    assert resize_refusal(job)
    assert resize_refusal(fold("job-1", PAUSED)) is None


def test_resize_and_resume_are_recorded_together() -> None:
    job = fold("job-1", PAUSED)

    events = resume(job, Limits(), {}, at(9), reason="back", by="ada", resized=resized())

    assert [type(event).__name__ for event in events] == ["Resized", "ResumeRequested"]
    assert events[0].at == at(9)


def test_price_of_new_nodes_counts_against_the_limit() -> None:
    job, costly = fold("job-1", PAUSED), replace(resized(), micros_per_hour=60_000_000)

    with pytest.raises(NotPossibleNow, match=r"max_cost_usd must be above 2\.01"):
        resume(job, Limits(max_cost_usd=1), {}, at(9), reason="back", resized=costly)


def test_batch_follows_from_the_number_of_ranks() -> None:
    same = RankChange.of(spec_of(), spec_of(), MANIFEST)
    more = RankChange.of(spec_of(), spec_of(num_nodes=4), MANIFEST)
    other = RankChange.of(spec_of(), spec_of(resources={"accelerators": "H100:8"}), MANIFEST)
    unknown = RankChange.of(spec_of(), spec_of(resources={"infra": "local"}), MANIFEST)
    new = RankChange.of(spec_of(), spec_of(num_nodes=4), None)

    assert "8 ranks as before" in same.batch_sentence
    assert "a step takes 256 samples instead of 128" in more.batch_sentence
    assert (more.after, other.after, unknown.after) == (16, 16, None)
    assert "follows from the GPUs of the new nodes" in unknown.batch_sentence
    assert new.batch_sentence == ""


def test_state_of_each_rank_needs_the_same_number_of_ranks() -> None:
    own = MANIFEST | {"per_rank": ["sampler"]}
    more = RankChange.of(spec_of(), spec_of(num_nodes=4), own)
    same = RankChange.of(spec_of(), spec_of(resources={"accelerators": "H100:4"}), own)

    assert more.checkpoint_refusal(None) is None
    assert "sampler for each of 8 ranks, and 16 ranks would train" in str(
        more.checkpoint_refusal(50)
    )
    assert same.checkpoint_refusal(50) is None


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (MANIFEST, "Training continues from step 50: its checkpoints fit any number of ranks."),
        ({**MANIFEST, "per_rank": None}, "which this job has not reported"),
        ({"world_size": "x", "nodes": True, "loader": 3}, "which this job has not reported"),
    ],
)
def test_checkpoint_sentence_says_what_is_known(manifest: Any, sentence: str) -> None:
    change = RankChange.of(spec_of(), spec_of(num_nodes=4), manifest)

    assert sentence in change.checkpoint_sentence(50, has_store=True)
    assert "starts at step 0" in change.checkpoint_sentence(None, has_store=True)
    assert "no checkpoint store" in change.checkpoint_sentence(50, has_store=False)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("local", "slurm/gpu", "nodes of Slurm may not see"),
        ("local", "aws", "does not follow it from local to aws"),
        ("aws/us-east-1", "gcp", "does not follow it"),
        ("slurm/a", "slurm/b", ""),
        ("aws", "aws", ""),
    ],
)
def test_folder_as_a_store_stays_with_its_cluster(before: str, after: str, words: str) -> None:
    old, new = saved_in("file:///data", before), saved_in("file:///data", after)

    assert words in (store_refusal(old, new, is_shared=False) or "")
    assert bool(store_refusal(old, new, is_shared=False)) is bool(words)
    assert bool(store_refusal(old, new, is_shared=True)) is ("follow" in words)
    bucket = saved_in("s3://bucket/a", before), saved_in("s3://bucket/a", after)
    assert store_refusal(*bucket, is_shared=False) is None


def test_service_must_still_be_able_to_delete_checkpoints() -> None:
    key = {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}
    slurm = saved_in("gs://bucket/a", "slurm", envs=key)
    cloud = saved_in("gs://bucket/a", "gcp", envs=key)

    assert "cannot read a key file on cloud nodes" in str(retention_refusal(slurm, cloud))
    assert retention_refusal(cloud, slurm) is None


def test_job_of_an_old_log_has_its_first_launcher() -> None:
    job: Job = fold("job-1", PAUSED)

    assert (job.spec_seq, job.launcher_changes) == (1, ())
    assert job.engine_of_launch(1) is Engine.LOCAL
