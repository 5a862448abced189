"""Preview of a launch: what a job file would launch.

The service renders it, or a client without a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.domain.jobfile.parser import Overrides, ParsedJobFile
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, check_spot_safety
from holdfast.errors import BadJobFile, HoldfastError
from holdfast.rendering import (
    NodeCommand,
    RenderedTask,
    TorchrunRequest,
    read_and_render,
    slurm_notes,
    standalone_script,
    standalone_script_notes,
    torchrun_commands,
    torchrun_notes,
)
from holdfast.submission.launch_estimate import LaunchEstimate


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewOptions:
    """Additional forms of a preview besides the rendered task."""

    by_hand: TorchrunRequest | None = None
    """Hosts on which people start the job with torchrun; None omits the commands."""
    sbatch: bool = False
    """Whether to include the script for sbatch."""
    prices: bool = False
    """Whether to include the placement and price; only a service has prices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The rendered launch of a job file."""

    engine: Engine
    task: str
    """The rendered task as YAML."""
    by_hand: Sequence[NodeCommand] = ()
    sbatch: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    refused: Sequence[str] = field(default_factory=tuple)
    """Reasons why a submission of the same request would be refused."""
    estimate: LaunchEstimate | None = None
    """The cheapest known placement; None if not requested."""


def preview(
    understood: ParsedJobFile,
    rendered: RenderedTask,
    options: PreviewOptions,
    *,
    notes: Sequence[str],
    refusals: Iterable[HoldfastError],
) -> Preview:
    """Render a launch; the caller passes `notes` and `refusals` that depend on the service.

    Raises:
        BadRequest: the job cannot be started with torchrun as requested.
    """
    spec = understood.spec
    more = [*notes]
    commands: Sequence[NodeCommand] = ()
    if options.by_hand:
        commands = torchrun_commands(spec, rendered.task, options.by_hand)
        more += torchrun_notes(spec)
    if options.sbatch:
        # Also for a job of another launcher: the same file may run on any cluster.
        more += [*slurm_notes(spec), *standalone_script_notes(spec)]
    return Preview(
        engine=spec.engine,
        task=rendered.text,
        sbatch=standalone_script(spec, rendered.task) if options.sbatch else "",
        by_hand=commands,
        notes=(*understood.notes, *rendered.notes, *more),
        refused=tuple(reason for error in refusals for reason in refusal_texts(error)),
    )


def preview_without_service(
    text: str, overrides: Overrides, options: PreviewOptions, now: datetime, *, force: bool
) -> Preview:
    """Render a launch as a service without past jobs would.

    Checks that need the service are skipped.

    Raises:
        BadRequest: as in `read_and_render` and `preview`.
    """
    understood, rendered = read_and_render(text, overrides)
    spec = understood.spec
    checkpoint, refusals = spec.holdfast.checkpoint, list[HoldfastError]()
    for check in (
        lambda: spec.holdfast.limits.check_deadline(now),
        lambda: check_spot_safety(spec, HistoricalLifetimes(), force=force),
    ):
        try:
            check()
        except BadJobFile as flaw:
            refusals.append(flaw)
    notes = check_spot_safety(spec, HistoricalLifetimes(), force=True)
    if checkpoint is not None and checkpoint.from_job is not None:
        notes += (f"job {checkpoint.from_job}, whose checkpoints it uses, was not checked",)
    return preview(understood, rendered, options, notes=notes, refusals=refusals)


def refusal_texts(error: HoldfastError) -> list[str]:
    """The reasons in a refusal, as texts."""
    if isinstance(error, BadJobFile):
        return [f"{flaw.pointer}: {flaw.message}" for flaw in error.issues]
    return [error.detail]
