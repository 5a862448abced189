"""The launchers of a service, put together as its settings ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast import addresses
from holdfast.clock import SystemClock
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.local.cgroup import open_groups
from holdfast.launchers.local.sandbox import Sandboxes
from holdfast.launchers.skypilot import SkyPilotClient, SkyPilotLauncher
from holdfast.launchers.skypilot.launcher import SkyPilotConfig
from holdfast.launchers.skypilot.naming import Names
from holdfast.launchers.skypilot.placement_prices import Prices
from holdfast.launchers.skypilot.task_body import Files
from holdfast.launchers.slurm import SlurmConfig as SlurmTerms
from holdfast.launchers.slurm import SlurmLauncher, batch_job, local, ssh
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.packaging.wheel import own_wheel, wheelhouse
from holdfast.ports import Launcher, PriceCatalog
from holdfast.settings import Settings
from holdfast.store.identity.service_tokens import Tokens
from holdfast.store.launches import LaunchBook


def open_launchers(
    settings: Settings,
    *,
    climate: MarketParameters,
    book: LaunchBook,
    tokens: Tokens,
    prices: PriceCatalog,
    address: str,
) -> Mapping[Engine, Launcher]:
    """Local processes always, SkyPilot if there is a server to speak to, Slurm if there is a folder. The service listens at
    `address`."""
    launchers: dict[Engine, Launcher] = {
        Engine.LOCAL: LocalLauncher(settings.home, climate, cells=_cells(settings))
    }
    if settings.skypilot_url:
        launchers[Engine.SKYPILOT] = _skypilot(settings, book, tokens, prices, address)
    if settings.slurm_folder:
        launchers[Engine.SLURM] = _slurm(settings, settings.slurm_folder)
    return launchers


def _cells(settings: Settings) -> Sandboxes | None:
    if not settings.local_members:
        return None
    memory_gb = settings.local_memory_gb
    return Sandboxes(
        folder=settings.local_folder,
        memory_bytes=None if memory_gb is None else round(memory_gb * 2**30),
        processes=settings.local_processes,
        groups=open_groups(),
    )


def _slurm(settings: Settings, folder: Path) -> SlurmLauncher:
    programs = settings.slurm_programs
    if settings.slurm_host:
        transport = ssh(settings.slurm_host, settings.home / "ssh", programs=programs)
    else:
        transport = local(programs)
    wheel = own_wheel(settings.home / "wheels")
    place = ClusterPaths(
        root=str(folder),
        worker=str(folder / "workers" / batch_job.name_of(wheel)),
        python=str(settings.slurm_python or ""),
        offline=str(settings.slurm_offline_root or ""),
        micros_per_node_hour=round(settings.slurm_usd_per_node_hour * MICROS_PER_USD),
        cluster=settings.slurm_cluster or "",
    )
    terms = SlurmTerms(
        transport=transport, place=place, worker=lambda: batch_job.pack_worker(wheel)
    )
    return SlurmLauncher(terms, SystemClock())


def _skypilot(
    settings: Settings, book: LaunchBook, tokens: Tokens, prices: PriceCatalog, address: str
) -> SkyPilotLauncher:
    assert settings.skypilot_url
    names = Names(tokens.deployment)
    token = settings.skypilot_token.get_secret_value() if settings.skypilot_token else None
    door = SkyPilotClient(settings.skypilot_url, user=names.user, token=token)
    here = addresses.is_here(settings.skypilot_url)
    shares = here if settings.skypilot_shares_files is None else settings.skypilot_shares_files
    reached_at = addresses.for_skypilot(settings, address)
    clock = SystemClock()
    return SkyPilotLauncher(
        door=door,
        memory=book,
        names=names,
        files=Files(settings.home / "skypilot-launches"),
        wheelhouse=lambda: wheelhouse(settings.home / "wheels"),
        nudge_url=lambda job: f"{reached_at}/v1/jobs/{job}/nudge/{tokens.for_nudge(job)}",
        prices=Prices(door, prices, clock),
        clock=clock,
        terms=SkyPilotConfig(shares_files=shares, list_every_s=settings.skypilot_list_every_s),
    )
