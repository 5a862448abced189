"""Actions on jobs that filters select, with a preview; and the command that changes tags."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import typer

from holdfast.api.schemas.selections import JobActionIn, JobActionsOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.cli.usage.job_filters import ChosenJobs, chosen_jobs
from holdfast.cli.usage.shared_options import with_options
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

ActionName: TypeAlias = Literal["cancel", "pause", "resume", "retry", "label"]
SHOWN: Final = 20
"""Jobs of a preview that are printed before the confirmation. `--dry-run` prints all."""


def is_selection(job_id: str | None, chosen: ChosenJobs, *, has_preview: bool = False) -> bool:
    """Whether a command acts on a selection instead of one job. `has_preview`: also of one job.

    Raises:
        BadRequest: it names both, or neither.
    """
    if (job_id is None) == (chosen.selection is None):
        raise BadRequest("name one job, or select jobs with options such as -l team=nlp")
    if job_id is not None and chosen.dry_run and not has_preview:
        raise BadRequest("--dry-run: it previews a selection; select jobs with -l, or leave it out")
    return job_id is None


def act_on_selection(
    action: ActionName,
    chosen: ChosenJobs,
    *,
    reason: str | None = None,
    tags: Mapping[str, str | None] | None = None,
    as_json: bool,
) -> None:
    """Preview an action, confirm it, and carry it out on the jobs of the preview."""
    assert chosen.selection is not None
    given = {"reason": reason, "tags": dict(tags) if tags else None}
    asked = JobActionIn.model_validate(
        {"action": action, **{name: value for name, value in given.items() if value}}
    )
    with Client.from_settings(read_settings()) as client:
        preview = client.jobs.act(
            asked.model_copy(update={"selection": chosen.selection, "dry_run": True})
        )
        if chosen.dry_run or not preview.done:
            _print_results(preview, action, as_json=as_json)
            return
        if not chosen.yes:
            _confirm(preview, action)
        ids = [job.job_id for job in preview.jobs if job.result == "done"]
        update = {"job_ids": ids, "selection": chosen.selection}
        done = client.jobs.act(asked.model_copy(update=update), secrets.token_hex(16))
    _print_results(done, action, as_json=as_json)
    if done.refused:
        raise typer.Exit(1)


def _confirm(preview: JobActionsOut, action: ActionName) -> None:
    count = output.counted(preview.done, "job")
    if not sys.stdin.isatty():
        raise BadRequest(f"{action} would change {count}; confirm with --yes, or see --dry-run")
    _print_table(preview, most=SHOWN)
    typer.confirm(f"{action.capitalize()} {count}?", abort=True)


def _print_results(results: JobActionsOut, action: ActionName, *, as_json: bool) -> None:
    if as_json:
        output.print_json(results)
        return
    if not results.jobs:
        output.echo("no jobs match these options")
        return
    _print_table(results)
    verb = "would be done" if results.dry_run else "done"
    output.echo(
        f"{action}: {results.done} {verb}, {results.unchanged} unchanged, {results.refused} refused"
    )


def _print_table(results: JobActionsOut, *, most: int | None = None) -> None:
    table = output.table("ID", "NAME", "STATE", "RESULT", "WHY")
    for job in results.jobs[:most]:
        why = f"as job {job.new_job_id}" if job.new_job_id else job.reason
        result = "would be done" if results.dry_run and job.result == "done" else job.result
        table.add_row(job.job_id, job.name, output.state(job.state), result, why or "")
    output.print_table(table)
    if most is not None and len(results.jobs) > most:
        output.echo(f"and {len(results.jobs) - most} more; --dry-run lists all")


@with_options("chosen", chosen_jobs)
def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] KEY=VALUE | KEY- ...",
            help="Job by id or name unless options select jobs; then tags to set, or with - to remove.",
        ),
    ],
    *,
    chosen: ChosenJobs,
    as_json: AsJson = False,
) -> None:
    """Change tags of a job, or of the jobs that options select."""
    named = words[0] if "=" not in words[0] and not words[0].endswith("-") else None
    tags = _tag_changes(words[1:] if named else words)
    if is_selection(named, chosen):
        act_on_selection("label", chosen, tags=tags, as_json=as_json)
        return
    with Client.from_settings(read_settings()) as client:
        job_id = client.jobs.resolve(named or "")
        done = client.jobs.act(JobActionIn(action="label", job_ids=[job_id], tags=tags))
    if as_json:
        output.print_json(done)
    for result in done.jobs if not as_json else ():
        why = f": {result.reason}" if result.reason else ""
        output.console.print(f"job {result.job_id}: {result.result}{why}", markup=False)
    if done.refused:
        raise typer.Exit(1)


def _tag_changes(words: list[str]) -> dict[str, str | None]:
    """Parse changes such as team=nlp and stage-."""
    found: dict[str, str | None] = {}
    for word in words:
        name, is_set, value = word.partition("=")
        if not is_set and not name.endswith("-"):
            raise BadRequest(f"{word}: write KEY=VALUE to set a tag, or KEY- to remove it")
        found[name if is_set else name[:-1]] = value if is_set else None
    if not found:
        raise BadRequest("name the tags: KEY=VALUE sets one, and KEY- removes it")
    return found
