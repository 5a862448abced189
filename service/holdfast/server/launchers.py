"""Creates the launchers of a service from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from holdfast import addresses
from holdfast.clock import SystemClock
from holdfast.confinement import why_no_local, why_no_slurm
from holdfast.controller.reconciler import PollIntervals
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import NotFound
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.local.cgroup import open_groups
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.skypilot import NodeGroupLauncher, SkyPilotClient, SkyPilotLauncher
from holdfast.launchers.skypilot.group_history import GroupShape
from holdfast.launchers.skypilot.launcher import SkyPilotConfig
from holdfast.launchers.skypilot.naming import JobNames
from holdfast.launchers.skypilot.placement_prices import PlacementPrices
from holdfast.launchers.skypilot.task_body import WorkdirCopies
from holdfast.launchers.slurm import SlurmConfig, SlurmLauncher, batch_job, local, ssh
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.packaging.wheel import own_wheel, wheelhouse
from holdfast.ports import Launcher, PriceCatalog
from holdfast.settings import Settings
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.machines.gpu_health import GpuHealth

GroupsOf: TypeAlias = Callable[[str], Sequence[GroupShape]]
"""Returns the node groups of a job; none if it has none, or is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherContext:
    """Dependencies of launchers."""

    settings: Settings
    market: MarketParameters
    launch_book: LaunchBook
    tokens: ServiceTokens
    prices: PriceCatalog
    address: str
    """Where the service listens."""
    groups_of: GroupsOf
    gpu_health: GpuHealth


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherEntry:
    """How a service gets and runs one kind of launcher."""

    open: Callable[[LauncherContext], Launcher | None]
    """Makes the launcher; None where the settings name none."""
    keep_days: Callable[[Settings], float]
    """How long files of a launch are kept after the end of its job."""
    refusal: Callable[[Settings], str]
    """Why users without rights to the service's machine may not use it; empty where they may."""
    poll_every_s: Callable[[Settings], float | None] = lambda _: None
    """How often the reconciler observes a job; None: as often as `HOLDFAST_LOOK_EVERY_S` says."""
    poll_cost_s: float = 0.0
    """The cost of one poll to the launcher, in seconds of its time."""


def open_launchers(context: LauncherContext) -> Mapping[Engine, Launcher]:
    """The launchers that the settings ask for, each by its kind."""
    opened = ((engine, entry.open(context)) for engine, entry in LAUNCHERS.items())
    return {engine: launcher for engine, launcher in opened if launcher is not None}


def poll_intervals(settings: Settings) -> PollIntervals:
    """How often the reconciler observes the jobs of each launcher."""
    by_engine = {engine: entry.poll_every_s(settings) for engine, entry in LAUNCHERS.items()}
    return PollIntervals(
        poll_every_s=settings.look_every_s,
        by_engine={engine: seconds for engine, seconds in by_engine.items() if seconds is not None},
        poll_cost_s={
            engine: one.poll_cost_s for engine, one in LAUNCHERS.items() if one.poll_cost_s
        },
        lease_s=settings.replicas_lease_s,
    )


def refusals(settings: Settings) -> Mapping[Engine, str]:
    """Why users without rights to the service's machine may not use a launcher."""
    whys = {engine: entry.refusal(settings) for engine, entry in LAUNCHERS.items()}
    return {engine: why for engine, why in whys.items() if why}


def _local(context: LauncherContext) -> LocalLauncher | None:
    settings = context.settings
    if (
        not settings.shares_home
    ):  # A local job belongs to one machine, and any replica may observe it.
        return None
    return LocalLauncher(
        settings.home,
        context.market,
        sandboxes=_sandboxes(settings),
        restart_s=settings.restart_s,
    )


def _sandboxes(settings: Settings) -> Sandboxes | None:
    if not settings.local_members:
        return None
    memory_gb = settings.local_memory_gb
    return Sandboxes(
        folder=settings.local_folder,
        memory_bytes=None if memory_gb is None else round(memory_gb * 2**30),
        processes=settings.local_processes,
        groups=open_groups(),
    )


def _slurm(context: LauncherContext) -> SlurmLauncher | None:
    settings, folder = context.settings, context.settings.slurm_folder
    if not folder:
        return None
    programs = settings.slurm_programs
    if settings.slurm_host:
        transport = ssh(settings.slurm_host, settings.home / "ssh", programs=programs)
    else:
        transport = local(programs)
    wheel = own_wheel(settings.home / "wheels")
    paths = ClusterPaths(
        root=str(folder),
        worker=str(folder / "workers" / batch_job.worker_digest(wheel)),
        python=str(settings.slurm_python or ""),
        offline=str(settings.slurm_offline_root or ""),
        prices=slurm_prices(settings),
        cluster=settings.slurm_cluster or "",
    )
    config = SlurmConfig(
        transport=transport,
        paths=paths,
        worker=lambda: batch_job.pack_worker(wheel),
        restart_s=settings.restart_s,
        avoided=lambda: context.gpu_health.avoided_nodes(Engine.SLURM),
    )
    return SlurmLauncher(config, SystemClock())


def slurm_prices(settings: Settings) -> SlurmPrices:
    """Return the prices of nodes on Slurm.

    Raises:
        BadRequest: HOLDFAST_SLURM_PRICES has an invalid item.
    """
    default = round(settings.slurm_usd_per_node_hour * MICROS_PER_USD)
    return SlurmPrices.parse(settings.slurm_prices or "", default)


def groups_in(journal: Journal) -> GroupsOf:
    """Return the node groups of jobs, which never change."""

    @lru_cache(MAX_CACHED_GROUPS)
    def groups_of(job_id: str) -> tuple[GroupShape, ...]:
        spec = JobSpec.from_stored(journal.submission(job_id).spec)
        return tuple(GroupShape(group.name, group.num_nodes) for group in spec.holdfast.groups)

    def or_none(job_id: str) -> tuple[GroupShape, ...]:
        try:
            return groups_of(job_id)
        except NotFound:
            return ()

    return or_none


def _skypilot(context: LauncherContext) -> NodeGroupLauncher | None:
    settings, tokens = context.settings, context.tokens
    if not settings.skypilot_url:
        return None
    names = JobNames(tokens.deployment)
    token = settings.skypilot_token.get_secret_value() if settings.skypilot_token else None
    client = SkyPilotClient(settings.skypilot_url, user=names.user, token=token)
    here = addresses.is_here(settings.skypilot_url)
    shares_files = (
        here if settings.skypilot_shares_files is None else settings.skypilot_shares_files
    )
    reached_at = addresses.for_skypilot(settings, context.address)
    clock = SystemClock()
    managed = SkyPilotLauncher(
        door=client,
        memory=context.launch_book,
        names=names,
        files=WorkdirCopies(settings.home / "skypilot-launches"),
        wheelhouse=lambda: wheelhouse(settings.home / "wheels"),
        nudge_url=lambda job: f"{reached_at}/v1/jobs/{job}/nudge/{tokens.for_nudge(job)}",
        prices=PlacementPrices(client, context.prices, clock),
        clock=clock,
        avoided=lambda: context.gpu_health.avoided_nodes(Engine.SKYPILOT),
        terms=SkyPilotConfig(
            shares_files=shares_files, list_every_s=settings.skypilot_list_every_s
        ),
    )
    return NodeGroupLauncher(
        managed, memory=context.launch_book, groups_of=context.groups_of, clock=clock
    )


MAX_CACHED_GROUPS: Final = 4096
"""Jobs whose node groups are cached. A lower value reads the submissions of a large fleet at every poll; a higher value uses memory."""
POLL_COST_S = 0.5
"""Seconds of SkyPilot's server per job and poll; reading a job's events costs 0.1 to 0.4 s
of a core. With a lower value, polls alone keep a small server busy at a hundred jobs; a
higher value relies more on its nudges."""

LAUNCHERS: Final[Mapping[Engine, LauncherEntry]] = {
    Engine.LOCAL: LauncherEntry(
        open=_local, keep_days=lambda settings: settings.local_keep_days, refusal=why_no_local
    ),
    Engine.SKYPILOT: LauncherEntry(
        open=_skypilot,
        keep_days=lambda settings: settings.skypilot_keep_days,
        refusal=lambda _: "",
        poll_every_s=lambda settings: settings.skypilot_look_every_s,
        poll_cost_s=POLL_COST_S,
    ),
    Engine.SLURM: LauncherEntry(
        open=_slurm,
        keep_days=lambda settings: settings.slurm_keep_days,
        refusal=why_no_slurm,
        poll_every_s=lambda settings: settings.slurm_look_every_s,
    ),
}
"""Every kind of launcher. The order is that in which a refusal names those that a service has."""
