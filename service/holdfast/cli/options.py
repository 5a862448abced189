"""Arguments and options that several commands take alike."""

from __future__ import annotations

from typing import Annotated

import typer

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
Since = Annotated[str | None, typer.Option("--since", help="First day in UTC: 2026-03-01, or 30d.")]
Until = Annotated[
    str | None, typer.Option("--until", help="Last day in UTC, written like --since.")
]
OnlyProject = Annotated[str | None, typer.Option("--project", help="Only of this project.")]
