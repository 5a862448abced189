"""Commands for notification channels and deliveries of a project."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from holdfast.api.schemas.notifications import ChannelIn, ChannelOut, DeliveryOut, NewChannelOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.cli.usage.job_argument import JobOption
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.client.notifications import ChannelsClient
from holdfast.errors import BadRequest, NotDelivered
from holdfast.settings import read_settings

app = typer.Typer(
    help="Manage notification channels: webhooks, mail and chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DEFAULT_PROJECT: Final = "default"
POLL_S: Final = 0.5
TEST_WAIT_S: Final = 30.0
"""Seconds that `test` waits for its delivery.

A lower value reports no result for slow receivers.
"""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the channel.")]
Project = Annotated[
    str | None,
    typer.Option(
        "--project", metavar="PROJECT", help="Project; default: the current one, or `default`."
    ),
]


@app.command()
def add(
    name: Name,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="https://..., mailto:..., slack://...; - reads it from standard input.",
        ),
    ],
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only events of this kind; repeatable."),
    ] = None,
    digest: Annotated[
        int,
        typer.Option(
            "--digest", metavar="SECONDS", help="Collect events for this long into one message."
        ),
    ] = 0,
    per_hour: Annotated[
        int,
        typer.Option(
            "--per-hour", metavar="N", help="Maximum messages per hour; the rest is delayed."
        ),
    ] = 30,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Create a notification channel for events of a project from now on."""
    said = sys.stdin.readline().strip() if url == "-" else url
    words = {"name": name, "url": said, "kinds": kinds or [], "digest_s": digest}
    try:
        channel_in = ChannelIn.model_validate({**words, "per_hour": per_hour})
    except ValidationError as error:
        raise output.refused(error) from error
    with _channels(project) as channels:
        made = channels.add(channel_in)
    _print_new(made, as_json=as_json)


@app.command("list")
def show(project: Project = None, as_json: AsJson = False) -> None:
    """List the channels of a project."""
    with _channels(project) as channels:
        found = channels.channels()
    if as_json:
        output.print_json(found)
    elif not found:
        output.echo("no channels; create one with: holdfast channels add NAME URL")
    else:
        _print(found)


@app.command("rm")
def remove(name: Name, project: Project = None) -> None:
    """Remove a channel and its delivery history."""
    with _channels(project) as channels:
        channels.remove(name)
    output.echo(f"removed channel {name}")


@app.command()
def rotate(name: Name, project: Project = None, as_json: AsJson = False) -> None:
    """Change the secret of a webhook; for a day, messages also carry a signature of the old one."""
    with _channels(project) as channels:
        made = channels.rotate(name)
    _print_new(made, as_json=as_json)


@app.command("test")
def send_test(name: Name, project: Project = None, as_json: AsJson = False) -> None:
    """Send a test message to a channel and report the result."""
    with _channels(project) as channels:
        sent = channels.test(name)
        deadline_s = time.monotonic() + TEST_WAIT_S
        while sent.progress == "waiting" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            sent = channels.delivery(name, sent.id)
    if as_json:
        output.print_json(sent)
    if sent.progress != "sent":
        raise NotDelivered(sent.trouble or f"no result within {TEST_WAIT_S:g} s")
    if not as_json:
        output.echo(f"{name} accepted message {sent.id}")


@app.command()
def deliveries(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the channel; alternative: --job."),
    ] = None,
    *,
    job: JobOption = None,
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, max=200, metavar="N", help="Maximum number of messages."),
    ] = 20,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """List the deliveries of a channel or job, including pending ones, newest first."""
    if (name is None) == (job is None):
        raise BadRequest("name either a channel or a job with --job")
    with _channels(project) as channels:
        every = (
            channels.job_deliveries(job, limit) if job else channels.deliveries(name or "", limit)
        )
        found = [*islice(every, limit)]
    if as_json:
        output.print_json(found)
    elif not found:
        output.echo(f"no messages {f'for job {job}' if job else f'to {name}'} yet")
    else:
        _print_deliveries(found)


@contextmanager
def _channels(project: str | None) -> Iterator[ChannelsClient]:
    settings = read_settings()
    named = project or Credentials.read(settings.login_file).project or DEFAULT_PROJECT
    with Client.from_settings(settings) as client:
        yield client.channels(named)


def _print_new(made: NewChannelOut, *, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    _print([made])
    if made.secret:
        output.echo("webhooks are signed with this secret, which is shown only once:")
        output.console.print(made.secret, markup=False)


def _print(channels: list[ChannelOut] | list[NewChannelOut]) -> None:
    table = output.table("NAME", "TARGET", "EVENTS", "DIGEST", "PER HOUR", right=("PER HOUR",))
    for item in channels:
        gathered = output.span(item.digest_s * 1000) if item.digest_s else "-"
        kinds = ", ".join(item.kinds) or "all"
        table.add_row(item.name, item.shown, kinds, gathered, str(item.per_hour))
    output.print_table(table)


def _print_deliveries(found: list[DeliveryOut]) -> None:
    right = ("EVENTS", "TRIES")
    table = output.table(
        "MESSAGE", "CREATED", "TO", "STATE", "EVENTS", "TRIES", "ABOUT", "ERROR", right=right
    )
    for item in found:
        about, trouble = ", ".join(item.kinds), item.trouble or "-"
        counts = str(item.news_count), str(item.tries)
        made = f"{item.made_at:%Y-%m-%d %H:%M}Z"
        table.add_row(item.id, made, item.shown, item.progress, *counts, about, trouble)
    output.print_table(table)
