"""The service as a client sees it, and SkyPilot and Slurm as the service sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from holdfast import addresses
from holdfast.api.schemas.service import LauncherOut
from holdfast.client import Client, Refused, ServiceUnreachable
from holdfast.doctor.findings import Finding, missing, ok, warning
from holdfast.launchers.skypilot.version import SERIES, VERSION

SKEW_S: Final = 5.0
"""How far two clocks may differ before times in a history look out of order. HTTP tells whole seconds."""


def look_at_service(client: Client, url: str) -> Iterator[Finding]:
    """The service, and what it launches through."""
    try:
        ready = client.ready()
        launchers = client.launchers()
    except ServiceUnreachable as error:
        todo = (
            "holdfast serve starts one, holdfast up one with SkyPilot; HOLDFAST_URL names another"
        )
        yield missing("service", error.detail, todo)
    except Refused as refusal:
        yield missing("service", f"{url}: {refusal.detail}", _after(refusal))
    else:
        yield ok("service", f"{url} (Holdfast {ready.version})")
        yield ok("database", f"revision {ready.revision}")
        sky = next((item for item in launchers if item.engine == "skypilot"), None)
        yield from look_at_skypilot(sky)
        slurm = next((item for item in launchers if item.engine == "slurm"), None)
        yield from look_at_slurm(slurm)
        yield from look_at_strangers(launchers)
        yield from look_at_undecided(launchers)
        yield from look_at_users(launchers)


def look_at_users(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """What jobs of users share with each other, where the service takes them."""
    for launcher in launchers:
        if launcher.users_share:
            yield ok("users", f"jobs of users on {launcher.engine} share {launcher.users_share}")


def look_at_strangers(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """Launches that run and are not in the service's database, as after a restore of an older backup."""
    for launcher in launchers:
        if launcher.swept is False and not launcher.trouble:
            yield warning(
                "strangers",
                f"{launcher.engine} was not searched yet for launches that are not in the service's database",
                "ask again in a minute",
            )
        if launcher.strangers:
            yield warning(
                "strangers",
                f"{launcher.engine} runs launches that are not in the service's database and are left alone: "
                f"{', '.join(launcher.strangers)}",
                "set HOLDFAST_DATABASE_URL to the database that has their jobs; or stop each with holdfast launches stop KEY "
                "and submit its job file again with holdfast.checkpoint.from and its job id",
            )


def look_at_undecided(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """Launches whose nodes may run without a record at their engine, which launches nothing until a person decides."""
    for launcher in launchers:
        for lost in launcher.undecided:
            job = lost.job_id
            yield missing(
                "undecided",
                f"nothing is launched by {launcher.engine} until you decide on job {job}: {lost.what}",
                f"holdfast cancel {job}; or holdfast pause {job}, then holdfast resume {job}",
            )


def look_at_slurm(slurm: LauncherOut | None) -> Iterator[Finding]:
    """Slurm, as the service saw it last; nothing where it is not wanted."""
    if slurm is None or not slurm.configured:
        return
    if slurm.reachable is None:
        yield warning("slurm", "was not asked yet", "ask again in some seconds")
        return
    if slurm.trouble:
        todo = "try sinfo where the service runs, or as its user: ssh HOST sinfo; the folder has to be there, too"
        yield missing("slurm", slurm.trouble, todo)
        return
    partitions = ", ".join(slurm.clouds or ())
    yield ok("slurm", f"{slurm.version}, with the partitions {partitions}")
    if addresses.is_here(slurm.reports_to or ""):
        yield warning(
            "slurm",
            f"nodes are told to report to {slurm.reports_to}, which is themselves; what they tell comes through the shared "
            "folder or the checkpoint store",
            "set HOLDFAST_PUBLIC_URL to an address of this service that nodes reach",
        )


def look_at_skypilot(sky: LauncherOut | None) -> Iterator[Finding]:
    """SkyPilot, as the service saw it last."""
    if sky is None or not sky.configured:
        yield ok(
            "skypilot", "not connected, so jobs run on the service's machine; holdfast up does"
        )
        return
    if sky.reachable is None:
        yield warning("skypilot", "was not asked yet", "ask again in some seconds")
        return
    if sky.trouble:
        todo = "look whether its API server runs; holdfast up starts one and connects the gate"
        yield missing("skypilot", sky.trouble, todo)
        if sky.version is None:
            return
    yield _version(sky)
    yield _clouds(sky)
    yield _gate(sky)
    yield _clock(sky)
    yield _reports(sky)


def _version(sky: LauncherOut) -> Finding:
    if (sky.version or "").startswith(SERIES):
        return ok("skypilot", f"{sky.version}, a version that is known here")
    return missing(
        "skypilot",
        f"{sky.version} is a version that is not known here: jobs are watched, and none is launched",
        f"install skypilot=={VERSION} for its API server",
    )


def _clouds(sky: LauncherOut) -> Finding:
    if sky.clouds is None:
        todo = "ask again in a minute"
        return warning("clouds", "SkyPilot is still trying the keys that it has found", todo)
    if sky.clouds:
        return ok("clouds", ", ".join(sky.clouds))
    return missing(
        "clouds",
        "none is enabled: SkyPilot has found no keys that work",
        "log in on the machine of SkyPilot's server (aws configure, gcloud auth application-default login, ...), "
        "then holdfast up --stop and holdfast up; sky check says what is wrong with each",
    )


def _gate(sky: LauncherOut) -> Finding:
    if sky.guarantee != "exactly-once":
        return warning(
            "launches",
            f"{sky.guarantee}: after a lost answer two clusters may stand side by side for a minute; never do both write",
            "holdfast up --configure says what SkyPilot's server needs to ask this service first; start it anew then",
        )
    if sky.waits_for_service:
        return warning(
            "launches",
            "exactly-once, and SkyPilot asks this service about all else, too: while it is down, nodes that were taken "
            "are not replaced, and nobody launches through that server",
            "put holdfast_gate.py beside SkyPilot's packages; holdfast up --configure says where, and what else",
        )
    return ok("launches", "exactly-once: SkyPilot asks this service before it launches its jobs")


def _clock(sky: LauncherOut) -> Finding:
    if sky.clock_skew_s is None:
        return warning("clock", "SkyPilot does not tell its time", "keep its machine's clock right")
    skew = f"SkyPilot's clock is {abs(sky.clock_skew_s):.0f} s {'ahead of' if sky.clock_skew_s > 0 else 'behind'} ours"
    if abs(sky.clock_skew_s) <= SKEW_S:
        return ok("clock", f"{skew}, within what HTTP can tell")
    return warning("clock", skew, "set both by NTP")


def _reports(sky: LauncherOut) -> Finding:
    url = sky.reports_to or ""
    if not addresses.is_here(url):
        return ok(
            "reports", f"nodes report to {url}; holdfast events JOB shows whether they reach it"
        )
    return warning(
        "reports",
        f"nodes are told to report to {url}, which is themselves: they train, save and resume, and what they tell comes "
        "through the checkpoint store, some minutes late, where a job has one that this service may read and delete in; "
        "they cannot be asked to save and leave before a limit is reached",
        "set HOLDFAST_PUBLIC_URL to an address of this service that nodes reach, behind TLS",
    )


def _after(refusal: Refused) -> str:
    match refusal.problem.status:
        case 401 | 403:
            return (
                "set HOLDFAST_TOKEN to the token in the file `token` of the service's home folder"
            )
        case 503:
            return "read the log of the service, and start it anew"
        case _:
            return "look whether HOLDFAST_URL is right, and whether client and service are of one version"
