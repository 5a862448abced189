"""The commands `traces`: what is known of the availability of spot nodes at places."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.api.schemas.traces import (
    RecordingIn,
)
from holdfast.cli import output
from holdfast.cli.jobs import connect
from holdfast.cli.output import AsJson
from holdfast.errors import BadRequest
from holdfast.host.trace_files import read_text, trace_files

if TYPE_CHECKING:
    from holdfast.domain.planning.recordings import Recording

app = typer.Typer(
    help="List the availability of spot nodes, on which plans rest; export and import it.",
    no_args_is_help=True,
)


@app.command("list")
def list_traces(*, as_json: AsJson = False) -> None:
    """List the places of which jobs or imported recordings have shown something."""
    with connect() as client:
        response = client.market.observed_places()
    if as_json:
        output.print_json(response)
        return
    if not response.places:
        output.echo("nothing was observed yet; jobs on spot nodes do, and holdfast traces import")
        return
    right = ("TICKS", "AVAILABLE")
    table = output.table("PLACE", "NODES", "SINCE", "UNTIL", *right, "SOURCE", right=right)
    for place in response.places:
        table.add_row(
            place.place,
            place.hardware or "-",
            f"{place.since:%Y-%m-%d}",
            f"{place.until:%Y-%m-%d}",
            str(place.ticks),
            f"{place.availability:.1%}",
            place.source,
        )
    output.print_table(table)


@app.command("export")
def export_traces(
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", help="First day in UTC, 2026-03-01 or 7d. Default: 90d."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the files; it is created if needed.")
    ] = Path("traces"),
    as_json: AsJson = False,
) -> None:
    """Write what jobs of this service have shown to one file for each place.

    `holdfast simulate` reads the folder.
    """
    from holdfast.domain.planning.recordings import Recording  # noqa: PLC0415 - NumPy

    with connect() as client:
        response = client.market.export_recordings(since)
    files = []
    for each in response.recordings:
        recording = Recording(
            name=each.name,
            place=each.place,
            hardware=each.hardware,
            start=each.start,
            gap_s=each.gap_seconds,
            runs=each.runs,
        )
        files.append(_write(out, f"{each.name}.json", json.dumps(recording.file())))
    if as_json:
        output.print_json({"files": [str(file) for file in files]})
    elif files:
        output.echo(f"wrote {len(files)} {'file' if len(files) == 1 else 'files'} to {out}")
    else:
        output.echo("no job has shown anything in this time; nothing was written")


@app.command("import")
def import_traces(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Recorded availability, JSON or CSV."),
    ],
    *,
    place: Annotated[
        str | None,
        typer.Option(
            "--place", help="Place of the recording, as infra of a job file. Default: by its name."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import recordings, on which plans rest as on what jobs have shown."""
    recordings = [*_read(paths, place or "")]
    if place and len(recordings) > 1:
        raise BadRequest(
            f"--place {place}: these are recordings of {len(recordings)} places; import one at a time"
        )
    done = []
    with connect() as client:
        for each in recordings:
            body = RecordingIn(
                name=each.name,
                place=each.place,
                hardware=each.hardware,
                start=each.start,
                gap_seconds=each.gap_s,
                runs=[*each.runs],
            )
            done.append(client.market.import_recording(body))
    if as_json:
        output.print_json({"imported": [each.model_dump(mode="json") for each in done]})
        return
    for result in done:
        nodes = f" ({result.hardware})" if result.hardware else ""
        was = "imported" if result.is_new else "imported before"
        output.echo(f"{result.name}: {was}, {result.place}{nodes}")


def _read(paths: list[Path], place: str) -> Iterator[Recording]:
    from holdfast.domain.planning import recordings, traces  # noqa: PLC0415 - NumPy

    for file in (file for path in paths for file in trace_files(path)):
        text = read_text(file)
        metadata: Mapping[str, Any] = {}
        start = None
        if file.suffix == ".csv":
            columns = traces.parse_csv(file.name, text)
            found = [(f"{file.stem}.{trace.name}", trace) for trace in columns]
            start = traces.first_time(file.name, text)
        else:
            found = [(file.stem, traces.parse_json(file.stem, text))]
            metadata = traces.metadata_of(file.name, text)
        for name, trace in found:
            traces.check_together([trace], together=False)
            yield recordings.recording_of(
                trace, name=name, metadata=metadata, start=start, place=place
            )


def _write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise BadRequest(f"--out {folder}: {error.strerror}") from error
    return file
