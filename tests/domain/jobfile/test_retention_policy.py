"""Checkpoint retention in a job file, and whether the service or the worker deletes."""

from __future__ import annotations

import pytest
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.retention_policy import Best, Mode, RetentionPolicy
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile
from holdfast.rendering import render
from holdfast_worker.protocol.policies import RetentionOwner


def spec(checkpoint: str, more: str = "") -> JobSpec:
    """A job with these keys in its checkpoint block, beside the store."""
    store = "" if "store:" in checkpoint else "store: s3://b, "
    return parse_job_file(
        f"{{run: x, {more} holdfast: {{checkpoint: {{{store}{checkpoint}}}}}}}"
    ).spec


def keep(text: str) -> RetentionPolicy:
    checkpoint = spec(f"keep: {text}").holdfast.checkpoint
    assert checkpoint
    return checkpoint.keep


def flaws(fields: str, more: str = "") -> dict[str, str]:
    """The errors by field, including those found by rendering."""
    with pytest.raises(BadJobFile) as refusal:
        render(spec(fields, more))
    return {flaw.pointer: flaw.message for flaw in refusal.value.issues}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5", RetentionPolicy(last=5)),
        ("{}", RetentionPolicy(last=3)),
        ("{every: 1000 steps}", RetentionPolicy(every="1000 steps")),
        ("{every: 1 step, last: 2}", RetentionPolicy(last=2, every="1 step")),
        (
            "{last: 4, best: {metric: val/loss, mode: min, count: 2}}",
            RetentionPolicy(last=4, best=Best(metric="val/loss", mode=Mode.MIN, count=2)),
        ),
        ("{best: {metric: accuracy, mode: max}}", RetentionPolicy(best=Best(metric="accuracy", mode=Mode.MAX))),
    ],
)  # fmt: skip
def test_retention_policy_is_a_number_or_a_mapping(text: str, meant: RetentionPolicy) -> None:
    assert keep(text) == meant


def test_step_interval_is_parsed_and_policy_stored_as_written() -> None:
    assert keep("{every: 1000 STEPS}").every_steps == 1000
    assert keep("3").every_steps is None
    stored = spec("keep: 7").model_dump(mode="json")["holdfast"]["checkpoint"]
    assert stored["keep"] == 7
    long = spec("keep: {every: 50 steps}")
    assert JobSpec.model_validate(long.model_dump(mode="json")) == long


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("1", "", "1 is not between 2 and 1000; with one, a corrupt checkpoint would lose all progress"),
        ("1001", "", "1001 is not between 2 and 1000"),
        ("yes", "", "True is not a retention policy; write a number such as 3, or a mapping of last, every and best"),
        ("all", "", "'all' is not a retention policy"),
        ("{last: 1}", "/last", "1: input should be greater than or equal to 2"),
        ("{lats: 3}", "/lats", "unknown key; did you mean 'last'?"),
        ("{every: 1000}", "/every", "1000 is not a count of steps; write 1000 steps"),
        ("{every: 15m}", "/every", "'15m' is not a count of steps; write one such as 1000 steps"),
        ("{every: 0 steps}", "/every", "'0 steps' is not a count of steps"),
        ("{best: val_loss}", "/best", "'val_loss' is incomplete; write {metric: val_loss, mode: min}"),
        ("{best: {metric: val_loss}}", "/best/mode", "is missing; write min or max"),
        ("{best: {mode: min}}", "/best/metric", "is missing; write the name under which the script logs it"),
        ("{best: {metric: a, mode: lowest}}", "/best/mode", "'lowest': input should be 'min' or 'max'"),
        ("{best: {metric: a, mode: min, cuont: 2}}", "/best/cuont", "unknown key; did you mean 'count'?"),
        ("{best: {metric: '', mode: min}}", "/best/metric", "'': string should have at least 1 character"),
    ],
)  # fmt: skip
def test_invalid_policy_is_refused_with_its_pointer(text: str, place: str, message: str) -> None:
    [(pointer, result)] = flaws(f"keep: {text}").items()

    assert pointer == f"#/holdfast/checkpoint/keep{place}"
    assert result.startswith(message)


@pytest.mark.parametrize(
    ("checkpoint", "more", "owner"),
    [
        ("keep: 3", "", RetentionOwner.SERVICE),
        ("tidy: worker", "", RetentionOwner.WORKER),
        ("store: 'file:///mnt/x'", "resources: {infra: local},", RetentionOwner.SERVICE),
        ("store: 'file:///mnt/x'", "resources: {infra: aws},", RetentionOwner.WORKER),
        (
            "store: 'file:///mnt/x', tidy: service",
            "resources: {infra: aws},",
            RetentionOwner.SERVICE,
        ),
        ("keep: 3", "secrets: {HF_TOKEN: a},", RetentionOwner.SERVICE),
        ("keep: 3", "secrets: {AWS_SECRET_ACCESS_KEY: a},", RetentionOwner.WORKER),
        ("store: 'gs://b/x'", "secrets: {AWS_SECRET_ACCESS_KEY: a},", RetentionOwner.SERVICE),
        ("store: 'gs://b/x'", "secrets: {GOOGLE_SERVICE_ACCOUNT_KEY: a},", RetentionOwner.WORKER),
        ("store: 'az://b/x'", "secrets: {AZURE_STORAGE_SAS_TOKEN: a},", RetentionOwner.WORKER),
        ("store: 'az://b/x'", "envs: {AZURE_STORAGE_ACCOUNT_NAME: a},", RetentionOwner.SERVICE),
        (
            "store: 'gs://b/x'",
            "envs: {GOOGLE_APPLICATION_CREDENTIALS: /k.json}, resources: {infra: gcp},",
            RetentionOwner.WORKER,
        ),
        ("keep: 3, tidy: service", "secrets: {AWS_SECRET_ACCESS_KEY: a},", RetentionOwner.SERVICE),
    ],
)
def test_service_owns_retention_unless_store_is_inaccessible(
    checkpoint: str, more: str, owner: RetentionOwner
) -> None:
    job = spec(checkpoint, more)

    rendered = render(job)

    assert job.retention_owner is owner
    assert rendered.task["envs"]["HOLDFAST_TIDY"] == owner.value
    was_chosen_for_them = "tidy:" not in checkpoint and owner is RetentionOwner.WORKER
    assert any("write tidy: service" in note for note in rendered.notes) is was_chosen_for_them


def test_job_without_a_store_has_no_retention_owner() -> None:
    job = parse_job_file("run: x").spec

    assert job.retention_owner is None
    assert "HOLDFAST_TIDY" not in render(job).task["envs"]


def test_policy_unsupported_by_the_worker_is_refused() -> None:
    best = "keep: {best: {metric: loss, mode: min}}"

    chosen = flaws(f"{best}, tidy: worker")
    locked_out = flaws("keep: {every: 9 steps}", "secrets: {AWS_SECRET_ACCESS_KEY: a},")

    place = "#/holdfast/checkpoint/keep"
    assert chosen[place].endswith("remove tidy, or keep a number of checkpoints")
    assert "are secrets of the job" in locked_out[place]
    assert locked_out[place].endswith(
        "give it access and write tidy: service, or keep a number of checkpoints"
    )


def test_retention_owner_is_service_or_worker() -> None:
    [(pointer, result)] = flaws("tidy: me").items()

    assert pointer == "#/holdfast/checkpoint/tidy"
    assert result == "'me': input should be 'service' or 'worker'"
