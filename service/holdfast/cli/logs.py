"""Commands that follow a job: logs and events.

Ctrl-C stops the command and leaves the job running.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from holdfast.api.schemas.diagnostics import MatchOut
from holdfast.api.schemas.jobs import EventOut, JobOut
from holdfast.cli import output
from holdfast.cli.diagnostics import print_rank_presence
from holdfast.cli.output import AsJson, timestamp
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client, Refused
from holdfast.errors import BadRequest, NotFound
from holdfast.settings import read_settings

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")]
Regex = Annotated[
    bool,
    typer.Option("--regex", "-E", help="Interpret --grep as a regular expression in RE2 syntax."),
]
Errors = Annotated[
    bool, typer.Option("--errors", help="Print lines of all logs that look like a failure.")
]

FAILURES: Final = "Traceback|ERROR|RuntimeError|OSError"
"""Pattern of lines that usually belong to a failure, in RE2 syntax."""

LONGEST_VALUE: Final = 200
"""Maximum characters of one value of an event.

A lower value truncates error messages; a higher value hides other values.
"""

EXIT_BY_STATE: Final = {"succeeded": 0, "failed": 100, "cancelled": 103}
"""Exit code of a command that followed a job, by the final state of the job."""


def logs(
    job_id: JobId,
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Attempt; default: the newest.")
    ] = None,
    node: Annotated[
        int | None, typer.Option("--node", min=0, help="Node; default: the first.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="Global rank, instead of a node.")
    ] = None,
    follow: Follow = False,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Print lines of all logs that contain this text.")
    ] = None,
    regex: Regex = False,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="Ignore case in --grep.")
    ] = False,
    errors: Errors = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Show which ranks have reported and which are missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a log of a job, or search all of its logs; --json lists the logs."""
    if ranks:
        _check_exclusive(
            errors, grep is not None, regex, ignore_case, follow, node is not None, rank is not None
        )
        print_rank_presence(job_id, attempt, as_json=as_json)
        return
    if errors:
        grep, regex = _failures(grep), True
    if grep is None and (regex or ignore_case):
        raise BadRequest("--regex and --ignore-case need a text to search for; add --grep TEXT")
    if grep is not None and follow:
        raise BadRequest(
            f"--{'errors' if errors else 'grep'} and --follow exclude each other; use one of them"
        )
    given = {"attempt": attempt, "node": node, "rank": rank}
    choice = {key: value for key, value in given.items() if value is not None}
    with Client.from_settings(read_settings()) as client:
        if grep is not None:
            found = client.diagnostics.search(
                job_id, grep, choice, is_regex=regex, ignore_case=ignore_case
            )
            _print_matches(job_id, found, as_json=as_json)
        elif as_json:
            output.print_json(client.jobs.logs(job_id))
        elif follow:
            with _detach_on_interrupt(job_id):
                _print_log(client, job_id, choice)
            _exit_like(client, job_id)
        else:
            _print_whole_log(client, job_id, choice)


def _print_whole_log(client: Client, job_id: str, choice: dict[str, int]) -> None:
    try:
        for piece in client.jobs.log_text(job_id, choice):
            _write(piece)
    except Refused as error:
        if error.exit_code != NotFound.exit_code:
            raise
        if client.jobs.logs(job_id):
            raise NotFound(
                f"job {job_id} has no such log; holdfast logs {job_id} --json lists its logs"
            ) from error
        detail = client.jobs.get(job_id).detail
        why = f"it has not started{f' ({detail})' * bool(detail)}"
        raise NotFound(f"job {job_id} has no logs: {why}") from error


def _failures(grep: str | None) -> str:
    """Return the pattern for lines of failures.

    Raises:
        BadRequest: --grep is also given.
    """
    if grep is not None:
        raise BadRequest("--errors and --grep exclude each other; use one of them")
    return FAILURES


def _check_exclusive(*others: bool) -> None:
    if any(others):
        raise BadRequest(
            "--ranks covers all nodes and ranks; combine it only with --attempt and --json"
        )


def events(job_id: JobId, follow: Follow = False, as_json: AsJson = False) -> None:
    """Print the events of a job."""
    with Client.from_settings(read_settings()) as client:
        if follow:
            with _detach_on_interrupt(job_id):
                for event in client.jobs.follow_events(job_id):
                    output.print_line(event) if as_json else _print_event(event)
            _exit_like(client, job_id)
        elif as_json:
            output.print_json(client.jobs.events(job_id))
        else:
            for event in client.jobs.events(job_id):
                _print_event(event)


def follow_to_the_end(client: Client, job_id: str) -> None:
    """Print the log of a job until it ends, then exit with the code of its state."""
    watch_to_the_end(client, job_id, is_shown=True)
    _exit_like(client, job_id)


def watch_to_the_end(client: Client, job_id: str, *, is_shown: bool) -> JobOut:
    """Wait until a job has ended and return it; prints its log in the meantime if shown."""
    with _detach_on_interrupt(job_id):
        if is_shown:
            _print_log(client, job_id, {})
        else:
            for _ in client.jobs.follow_events(job_id):
                pass
    return client.jobs.get(job_id)


@contextmanager
def _detach_on_interrupt(job_id: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        output.echo(
            f"\nstopped watching; job {job_id} keeps running (holdfast cancel {job_id} ends it)"
        )
        raise typer.Exit(130) from None


def _exit_like(client: Client, job_id: str) -> None:
    job = client.jobs.get(job_id)
    output.echo(f"job {job.id} {job.state}" + (f": {job.detail}" if job.detail else ""))
    raise typer.Exit(EXIT_BY_STATE.get(job.state, 0))


def _print_log(client: Client, job_id: str, choice: dict[str, int]) -> None:
    attempt = 0
    for chunk in client.jobs.follow_log(job_id, choice):
        if chunk.attempt != attempt:
            attempt = chunk.attempt
            output.echo(f"--- attempt {attempt}")
        _write(chunk.text)


def _print_matches(job_id: str, found: Iterable[MatchOut], *, as_json: bool) -> None:
    """Print each match with its location on arrival, so that a long search shows progress."""
    count = 0
    for match in found:
        count += 1
        if as_json:
            output.print_line(match)
            continue
        who = f"node {match.node}" if match.rank is None else f"rank {match.rank}"
        end = " ..." if match.is_cut else ""
        _write(f"attempt {match.attempt} {who}:{match.line}: {match.text}{end}\n")
    if not count:
        output.echo(f"no match in the logs of job {job_id}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_event(event: EventOut) -> None:
    output.console.print(event_line(event), markup=False, highlight=False)


def event_line(event: EventOut) -> str:
    """Format an event on one line: time, source, kind and values."""
    shown = {key: value for key, value in event.body.items() if key not in {"spec", "task"}}
    words = [
        f"{key}={_value(value)}" for key, value in shown.items() if value not in (None, "", [])
    ]
    return f"{timestamp(event.at)} {event.source:<10} {event.kind:<20} {' '.join(words)}".rstrip()


def _value(value: object) -> str:
    """Abbreviate a value. `--json` prints all of it."""
    if isinstance(value, dict):
        entries = [f"{key}={item}" for key, item in value.items()]
        is_flat = not any(isinstance(item, dict | list) for item in value.values())
        text = "{" + " ".join(entries) + "}"
        return (
            text
            if is_flat and len(text) <= LONGEST_VALUE
            else f"({output.counted(len(value), 'value')})"
        )
    if isinstance(value, list):
        text = ",".join(map(str, value))
        is_flat = not any(isinstance(item, dict | list) for item in value)
        return (
            text
            if is_flat and len(text) <= LONGEST_VALUE
            else f"({output.counted(len(value), 'item')})"
        )
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
