"""Commands for jobs: submit, list, show, cancel and preempt."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from holdfast.api.schemas.diagnostics import ProofOut
from holdfast.api.schemas.jobs import (
    JobOut,
    LaunchEstimateOut,
    LimitsIn,
    NodesEstimateOut,
    RenderTaskIn,
    TaskIn,
)
from holdfast.api.schemas.selections import SelectionIn
from holdfast.api.schemas.throughput import ThroughputOut
from holdfast.cli import output
from holdfast.cli.checkpoints import retention_failure
from holdfast.cli.code_upload import Upload, code_of
from holdfast.cli.diagnostics import print_hints
from holdfast.cli.logs import follow_to_the_end
from holdfast.cli.metrics import (
    ends_in,
    gpu_rows,
    gpus_of,
    per_second,
    speed_rows,
    throughput,
)
from holdfast.cli.output import AsJson, money, steps, warn_stale_launchers
from holdfast.cli.usage.bulk_actions import act_on_selection, is_selection
from holdfast.cli.usage.job_argument import JobId, MaybeJobId
from holdfast.cli.usage.job_filters import ChosenJobs, chosen_jobs, job_filters
from holdfast.cli.usage.shared_options import Limits, submission_limits, with_options
from holdfast.client import Client, Refused
from holdfast.client.credentials import Credentials
from holdfast.domain.events.values import MAX_PRIORITY
from holdfast.domain.jobs.job import node_names
from holdfast.errors import BadRequest
from holdfast.sdk.job_files import check_yaml, local_task
from holdfast.settings import own_variable, read_settings

File = Annotated[Path, typer.Argument(metavar="FILE", help="Job file; - reads standard input.")]
Name = Annotated[str | None, typer.Option("--name", "-n", help="Name instead of the file's.")]
Envs = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K=V", help="Overrides the file's `envs`; repeatable."),
]
Project = Annotated[
    str | None, typer.Option("--project", "-p", help="Project instead of the file's.")
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="K[=V]",
        help="Overrides the file's `secrets`; without =V the value is read from your environment; repeatable.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Run on spot without checkpoints (progress is lost on preemption), or with limits that no plan can keep.",
    ),
]
KeepFailed = Annotated[
    str | None,
    typer.Option(
        "--keep-failed",
        metavar="TIME",
        help="Keep nodes after a failure for holdfast exec, such as 1h; they are billed.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        min=-MAX_PRIORITY,
        max=MAX_PRIORITY,
        metavar="N",
        help="Priority in the queue instead of the file's; higher ones are admitted first.",
    ),
]


def connect() -> Client:
    """Connect to the service named by the settings."""
    return Client.from_settings(read_settings())


@with_options("limits", submission_limits)
def submit(
    file: File,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    project: Project = None,
    limits: Limits,
    priority: Priority = None,
    keep_failed: KeepFailed = None,
    force: Force = False,
    upload: Upload = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job; it survives preemptions until it is done."""
    task = task_of(file, name, env, secret).model_copy(update={"force": force})
    task.limits = LimitsIn(**limits) if limits else None
    task.priority, task.keep_failed = priority, keep_failed
    task.project, task.default_project = (
        project,
        Credentials.read(read_settings().login_file).project,
    )
    with connect() as client:
        task.code = code_of(client, task.task, upload)
        if not as_json:
            _print_estimate(client, task)
        job = client.jobs.submit(task, idempotency_key=secrets.token_hex(16))
        if as_json:
            output.print_json(job)
        else:
            for note in job.notes:
                output.echo(f"note: {note}")
            output.console.print(f'Submitted job {job.id} "{job.name}"', markup=False)
        if follow:
            follow_to_the_end(client, job.id)
        elif not as_json:
            output.echo(
                f"follow its log: holdfast logs -f {job.id}; show its state: holdfast show {job.id}"
            )


def _print_estimate(client: Client, task: TaskIn) -> None:
    """Print the launcher, place and price of a job, if the service can render it."""
    try:
        asked = RenderTaskIn(**task.model_dump(exclude_unset=True), prices=True)
        rendered = client.jobs.render(asked)
    except Refused:
        return  # The submission reports the reason; an older service does not know `prices`.
    if rendered.estimate and not rendered.refused:
        output.echo(estimate_line(rendered.engine, rendered.estimate))


def estimate_line(engine: str, estimate: LaunchEstimateOut) -> str:
    """Describe where a job will run and what it may cost."""
    parts = [output.NAMES.get(engine, engine)]
    if estimate.simulated:
        parts += [_estimated_nodes(estimate), "nothing is billed"]
    elif estimate.groups:
        groups = [f"{each.name}: {', '.join(_estimated_place(each))}" for each in estimate.groups]
        total = estimate.micros_per_hour
        sums = "total unknown" if total is None else f"total {money(total, simulated=True)}/h"
        parts += ["; ".join([*groups, sums])]
    else:
        parts += _estimated_place(estimate)
    limit = estimate.max_cost_usd
    most = f"maximum {money(round(float(limit) * 1e6))}" if limit else "no maximum cost"
    return f"{', '.join(parts)}; {most}"


def _estimated_nodes(estimate: LaunchEstimateOut | NodesEstimateOut) -> str:
    count = estimate.nodes
    return f"{count} × {estimate.node}" if estimate.node else output.counted(count, "node")  # noqa: RUF001


def _estimated_place(estimate: LaunchEstimateOut | NodesEstimateOut) -> list[str]:
    """The place of nodes, then their number, kind and price."""
    place = estimate.place or "any cloud"
    kind = "spot" if estimate.is_spot else "on-demand"
    price = ", price unknown"
    if estimate.micros_per_hour is not None:
        price = f" {money(estimate.micros_per_hour, simulated=True)}/h"
        price += " (price older than 90 days)" * estimate.is_old
    where = place if estimate.is_pinned else f"{place} (cheapest)"
    return [where, f"{_estimated_nodes(estimate)} {kind}{price}"]


@with_options("filters", job_filters)
def ps(
    *,
    filters: SelectionIn | None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=200, help="Maximum number of jobs.")
    ] = 50,
    _all: Annotated[
        bool, typer.Option("--all", "-a", help="Changes nothing: ended jobs are always listed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    asked = filters or SelectionIn()
    with connect() as client:
        page = client.jobs.page(
            statuses=asked.status,
            limit=limit,
            project=asked.project,
            text=asked.find,
            owner=asked.owner,
            tags=asked.tag,
            since=asked.since,
            until=asked.until,
            selector=asked.selector,
            launchers=asked.launcher,
        )
        if not as_json:
            warn_stale_launchers(client)
    if as_json:
        output.print_json(page.jobs)
        return
    if not page.jobs:
        output.echo(
            "no jobs match these options"
            if filters
            else "no jobs; submit one with: holdfast submit FILE"
        )
        return
    _print_table(page.jobs)
    if page.next:
        output.echo(f"only the newest {limit} are shown; raise --limit to see more")


def _print_table(jobs: Sequence[JobOut]) -> None:
    numbers = ("STEP", "STEPS/S", "PAID", "ON DEMAND", "FAIL", "PREEMPTED")
    table = output.table(
        "ID",
        "NAME",
        "STATE",
        "STEP",
        "STEPS/S",
        "ENDS IN",
        "PAID",
        "ON DEMAND",
        "FAIL",
        "PREEMPTED",
        "WHERE",
        right=numbers,
    )
    for job in jobs:
        table.add_row(
            job.id,
            job.name,
            output.state(job.state).append(_under_notice(job)),
            steps(job.step, job.total_steps),
            per_second(job.rates.steps_per_s) if job.rates else "-",
            ends_in(job.eta) or "-",
            money(job.paid_micros, simulated=job.simulated or job.is_price_estimate),
            money(job.on_demand_micros, simulated=job.simulated or job.is_price_estimate),
            f"{job.failures}/{job.max_failures}",
            str(job.preemptions),
            job.zone or "-",
        )
    output.print_table(table)


def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show the state of a job."""
    with connect() as client:
        job = client.jobs.get(job_id)
        if not as_json:
            warn_stale_launchers(client)
            found = client.diagnostics.hints(job_id, with_logs=False)
            speed = throughput(client, job_id)
            gpus = gpu_rows(gpus_of(client, job_id))
    if as_json:
        output.print_json(job)
    else:
        _print_job(job, speed, gpus)
        print_hints(found)


@with_options("chosen", chosen_jobs)
def cancel(
    job_id: MaybeJobId = None,
    *,
    chosen: ChosenJobs,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown in the job's history.")
    ] = "cancelled on request",
    as_json: AsJson = False,
) -> None:
    """Cancel a job, or those that options select; workers save a last checkpoint if possible."""
    if is_selection(job_id, chosen):
        act_on_selection("cancel", chosen, reason=reason, as_json=as_json)
        return
    assert job_id is not None
    with connect() as client:
        job = client.jobs.cancel(job_id, reason)
    if as_json:
        output.print_json(job)
    else:
        # A queued job may be cancelled at once.
        has_failed = job.ended_at is not None and job.state != "cancelled"
        state = f"has already {job.state}; nothing to cancel" if has_failed else f"is {job.state}"
        output.console.print(f"job {job.id} {state}", markup=False)


def preempt(
    job_id: JobId,
    *,
    node: Annotated[
        int | None,
        typer.Option("--node", min=0, help="Node to preempt; default: the last one."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Node group to preempt, in place of a node.")
    ] = None,
    notice: Annotated[
        str, typer.Option("--notice", help="Notice before the node stops, such as 120s.")
    ] = "120s",
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Preempt without notice.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Accept the loss of steps that are not saved.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Preempt a node or a node group, as a spot market would, to test recovery."""
    notice_s = None if no_notice else seconds_of(notice)
    with connect() as client:
        job = client.jobs.preempt(job_id, node=node, group=group, notice_s=notice_s, force=force)
    if as_json:
        output.print_json(job)
    else:
        how = "without notice" if notice_s is None else f"{notice_s:g} s notice"
        output.console.print(
            f"preempting {_preempted_text(job, node, group)} of job {job.id} ({how})",
            markup=False,
        )


def _preempted_text(job: JobOut, node: int | None, group: str | None) -> str:
    """What a drill preempts. A node group is lost as a whole, whichever of its nodes was named."""
    if not job.groups:
        return "one node" if node is None else f"node {node}"
    text, first = "", 0
    for each in job.groups:
        nodes = range(first, first := first + each.nodes)
        text = f"group {each.name} ({node_names(nodes)})"
        if each.name == group or node in nodes:
            break
    return text


def _drills(job: JobOut) -> str:
    return f" ({output.counted(job.drills, 'drill')})" if job.drills else ""


def _under_notice(job: JobOut) -> str:
    if job.notice is None:
        return ""
    is_known = job.notice.phase != "noticed"
    return ", termination notice" + f": {job.notice.phase}" * is_known


def _notice(job: JobOut) -> str | None:
    """Describe the pending termination notice of a job."""
    if job.notice is None:
        return None
    notice = job.notice
    left = "" if notice.left_s is None else f", {notice.left_s:.0f} s before the nodes stop"
    return f"termination notice at {notice.at:%H:%M:%SZ}{left}, at step {notice.step:,}: {notice.phase}"


def _price_note(job: JobOut) -> str:
    """Explain the `~` before the prices of a job."""
    if job.simulated:
        return " (simulated prices)"
    return " (estimated prices)" if job.is_price_estimate else ""


def _print_job(
    job: JobOut, speed: ThroughputOut | None = None, gpus: Mapping[str, str] = {}
) -> None:
    heading = Text.assemble((f"{job.id}  {job.name}  ", "bold"), output.state(job.state))
    output.console.print(heading)
    mark = job.simulated or job.is_price_estimate
    rows = {
        "detail": job.detail,
        "notice": _notice(job),
        "trouble": job.trouble,
        "warning": job.warning,
        "project": f"{job.project}, submitted by {job.owner}" if job.owner else None,
        "continues": f"from job {job.from_job}" if job.from_job else None,
        "step": steps(job.step, job.total_steps),
        **speed_rows(speed),
        "attempt": f"{job.attempt} in {job.zone}" if job.zone else "none yet",
        **gpus,
        "nodes": f"{job.min_nodes}-{job.nodes}" if job.min_nodes else None,
        "budgets": f"failures {job.failures}/{job.max_failures} · preemptions {job.preemptions}/∞{_drills(job)} · resumes {job.resumes}",
        "checkpoint": _checkpoint(job),
        "saves": job.saves,
        "store": job.store_promise,
        "retention": retention_failure(job.tidying),
        "proof": _proof(job.proof),
        "lost": output.counted(job.lost_steps, "step"),
        "money": f"paid {money(job.paid_micros, simulated=mark)} · on demand {money(job.on_demand_micros, simulated=mark)}"
        f" · {output.saved(job.on_demand_micros - job.paid_micros, simulated=mark)}"
        + _price_note(job),
        "exit code": None if job.exit_code is None else str(job.exit_code),
        "tags": ", ".join(f"{key}={value}" for key, value in job.tags.items()),
        "submitted": f"{job.submitted_at:%Y-%m-%d %H:%M:%SZ}",
        "last seen": f"{job.last_seen_at:%Y-%m-%d %H:%M:%SZ}" if job.last_seen_at else None,
    }
    for label, value in rows.items():
        if value:
            output.console.print(f"  {label:<11} {value}", markup=False)


def _checkpoint(job: JobOut) -> str:
    if job.last_checkpoint_step is None:
        return "none yet"
    age = f", {output.age(job.last_checkpoint_at)} old" if job.last_checkpoint_at else ""
    return f"step {job.last_checkpoint_step:,}{age}"


def _proof(proof: ProofOut | None) -> str | None:
    return f"{'✓' if proof.holds else '✗ DIFFERENT:'} {proof.why}" if proof else None


def task_of(
    file: Path, name: str | None, env: list[str] | None, secret: list[str] | None
) -> TaskIn:
    """Combine a job file with the values of the command line for submission.

    Raises:
        BadRequest: a variable, or the path of the current directory, is not UTF-8.
    """
    text, envs = _read(file), envs_of(env)
    check_yaml("standard input" if str(file) == "-" else str(file), text)
    secrets = dict(secret_of(item) for item in secret or [])
    try:
        return local_task(text, name=name, env=envs, secrets=secrets)
    except ValidationError as error:
        raise output.refused(error) from error


def envs_of(env: list[str] | None) -> dict[str, str]:
    """Parse the values of `--env` by name."""
    pairs = [item.partition("=") for item in env or []]
    if bare := [key for key, equals, _ in pairs if not equals]:
        raise BadRequest(f"--env {bare[0]}: write it as NAME=VALUE")
    return {key: value for key, _, value in pairs}


def secret_of(item: str) -> tuple[str, str]:
    """Parse the name and value of one `--secret`."""
    name, equals, value = item.partition("=")
    if equals:
        return name, value
    if (own := own_variable(name)) is None:
        raise BadRequest(
            f"--secret {name}: the environment variable {name} is not set; export it first"
        )
    return name, own


def _read(file: Path) -> str:
    try:
        return (
            typer.get_text_stream("stdin").read()
            if str(file) == "-"
            else file.read_text(encoding="utf-8")
        )
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}; give the path of a job file") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not UTF-8 text; a job file is YAML") from error


def seconds_of(text: str) -> float:
    """Parse the value of `--notice` in seconds."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError as error:
        raise BadRequest(f"--notice {text}: write seconds, such as 120s") from error
    if not 0 <= seconds <= 3600:
        raise BadRequest(f"--notice {text}: between 0s and 3600s")
    return seconds
