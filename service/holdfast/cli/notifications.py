"""Commands about notifications: where news of a project goes, and what was sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from holdfast.api.schemas.notifications import ChannelIn, ChannelOut, DeliveryOut, NewChannelOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.client.notifications import ChannelsClient
from holdfast.errors import BadRequest, NotDelivered
from holdfast.settings import read_settings

app = typer.Typer(
    help="Where news of a project goes: webhooks, mail, chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DEFAULT_PROJECT: Final = "default"
POLL_S: Final = 0.5
TEST_WAIT_S: Final = 30.0
"""How long `test` waits for what becomes of its message. Shorter than a slow receiver may take says nothing of it."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the channel.")]
Project = Annotated[
    str | None,
    typer.Option("--project", metavar="PROJECT", help="Default: the one in use, else `default`."),
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
        typer.Option("--kind", metavar="KIND", help="Only news of this kind; repeatable."),
    ] = None,
    digest: Annotated[
        int,
        typer.Option("--digest", metavar="SECONDS", help="Gather news so long for one message."),
    ] = 0,
    per_hour: Annotated[
        int,
        typer.Option("--per-hour", metavar="N", help="Messages in an hour; what is more waits."),
    ] = 30,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Let news of a project go somewhere, from now on."""
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
        found = channels.all()
    if as_json:
        output.print_json(found)
    elif not found:
        output.echo("no channels; holdfast channels add NAME URL makes one")
    else:
        _print(found)


@app.command("rm")
def remove(name: Name, project: Project = None) -> None:
    """Send nothing there any more, and forget what was sent."""
    with _channels(project) as channels:
        channels.remove(name)
    output.echo(f"nothing is sent to {name} any more")


@app.command()
def rotate(name: Name, project: Project = None, as_json: AsJson = False) -> None:
    """Change the secret of a webhook; for a day, messages are signed with the one before, too."""
    with _channels(project) as channels:
        made = channels.rotate(name)
    _print_new(made, as_json=as_json)


@app.command("test")
def send_test(name: Name, project: Project = None, as_json: AsJson = False) -> None:
    """Send a message to try a channel with, and say what became of it."""
    with _channels(project) as channels:
        sent = channels.test(name)
        deadline_s = time.monotonic() + TEST_WAIT_S
        while sent.progress == "waiting" and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            sent = channels.delivery(name, sent.id)
    if as_json:
        output.print_json(sent)
    if sent.progress != "sent":
        raise NotDelivered(sent.trouble or f"nothing was heard of it in {TEST_WAIT_S:g} s")
    if not as_json:
        output.echo(f"{name} has it, as message {sent.id}")


@app.command()
def deliveries(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of the channel; without it, --job.")
    ] = None,
    *,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="To the places that this job's file names."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=200, metavar="N", help="How many.")
    ] = 20,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """List what was sent to a channel, or to the places of a job, and what waits, newest first."""
    if (name is None) == (job is None):
        raise BadRequest("name a channel, or a job with --job, and not both")
    with _channels(project) as channels:
        found = (
            channels.deliveries_of(job, limit) if job else channels.deliveries(name or "", limit)
        )
    if as_json:
        output.print_json(found)
    elif not found:
        output.echo(f"nothing was sent {f'for job {job}' if job else f'to {name}'} yet")
    else:
        _print_deliveries(found)


@contextmanager
def _channels(project: str | None) -> Iterator[ChannelsClient]:
    settings = read_settings()
    named = project or Credentials.read(settings.login_file).project or DEFAULT_PROJECT
    with Client.from_settings(settings) as client:
        yield ChannelsClient(client, named)


def _print_new(made: NewChannelOut, *, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    _print([made])
    if made.secret:
        output.echo("webhooks are signed with this secret, which is shown this once:")
        output.console.print(made.secret, markup=False)


def _print(channels: list[ChannelOut] | list[NewChannelOut]) -> None:
    table = output.table("NAME", "LEADS TO", "NEWS", "DIGEST", "PER HOUR", right=("PER HOUR",))
    for item in channels:
        gathered = output.span(item.digest_s * 1000) if item.digest_s else "-"
        kinds = ", ".join(item.kinds) or "all"
        table.add_row(item.name, item.shown, kinds, gathered, str(item.per_hour))
    output.print_table(table)


def _print_deliveries(found: list[DeliveryOut]) -> None:
    right = ("NEWS", "TRIES")
    table = output.table(
        "MESSAGE", "MADE", "TO", "IS", "NEWS", "TRIES", "ABOUT", "TROUBLE", right=right
    )
    for item in found:
        about, trouble = ", ".join(item.kinds), item.trouble or "-"
        counts = str(item.news_count), str(item.tries)
        made = f"{item.made_at:%Y-%m-%d %H:%M}Z"
        table.add_row(item.id, made, item.shown, item.progress, *counts, about, trouble)
    output.print_table(table)
