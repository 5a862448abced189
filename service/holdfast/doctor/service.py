"""Checks of the service as a client sees it, and of SkyPilot and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from holdfast import addresses
from holdfast.api.schemas.service import LauncherOut
from holdfast.client import Client, Refused, ServiceUnreachable
from holdfast.doctor.findings import Finding, missing, ok, warning
from holdfast.domain.jobfile.spec import launcher_name
from holdfast.launchers.skypilot.version import SERIES, VERSION

SKEW_S: Final = 5.0
"""Maximum difference of two clocks before times in a history look out of order.

HTTP dates have whole seconds.
"""


def check_service(client: Client, url: str) -> Iterator[Finding]:
    """Check the service and its launchers."""
    try:
        ready = client.service.ready()
        launchers = client.service.launchers()
    except ServiceUnreachable as error:
        todo = "start one with holdfast serve, or with holdfast up for SkyPilot; or set HOLDFAST_URL to another one"
        yield missing("service", error.detail, todo)
    except Refused as refusal:
        yield missing("service", f"{url}: {refusal.detail}", _after(refusal))
    else:
        yield ok("service", f"{url} (Holdfast {ready.version})")
        yield ok("database", f"revision {ready.revision}")
        sky = next((item for item in launchers if item.engine == "skypilot"), None)
        yield from check_skypilot(sky)
        slurm = next((item for item in launchers if item.engine == "slurm"), None)
        yield from check_slurm(slurm)
        yield from check_unknown_launches(launchers)
        yield from check_undecided(launchers)
        yield from check_users(launchers)


def check_users(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """Report what jobs of different users share, on services with users."""
    for launcher in launchers:
        if launcher.users_share:
            yield ok("users", f"jobs of users with {_name(launcher)} share {launcher.users_share}")


def check_unknown_launches(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """Report running launches that are missing from the service's database.

    There may be some after a restore of an older backup.
    """
    for launcher in launchers:
        if launcher.swept is False and not launcher.trouble:
            yield warning(
                "strangers",
                f"{_name(launcher)} was not searched yet for launches missing from the service's database",
                "run this again in a minute",
            )
        if launcher.strangers:
            yield warning(
                "strangers",
                f"{_name(launcher)} runs launches that are missing from the service's database and are left running: "
                f"{', '.join(launcher.strangers)}",
                "set HOLDFAST_DATABASE_URL to the database that has their jobs; or stop each with holdfast launches stop KEY "
                "and submit its job file again with holdfast.checkpoint.from and its job id",
            )


def check_undecided(launchers: Iterable[LauncherOut]) -> Iterator[Finding]:
    """Report launches whose nodes may run without a record at their engine.

    The job waits for a person to decide.
    """
    for launcher in launchers:
        for lost in launcher.undecided:
            job = lost.job_id
            yield missing(
                "undecided",
                f"{_name(launcher)} launches nothing for job {job} until you decide: {lost.what}",
                f"holdfast cancel {job}; or holdfast pause {job}, then holdfast resume {job}",
            )


def check_slurm(slurm: LauncherOut | None) -> Iterator[Finding]:
    """Check Slurm, as last observed by the service; empty if it is not configured."""
    if slurm is None or not slurm.configured:
        return
    if slurm.reachable is None:
        yield warning("slurm", "not probed yet", "run this again in some seconds")
        return
    if slurm.trouble:
        todo = "run sinfo on the service's machine, or as its user: ssh HOST sinfo; the directory must exist there as well"
        yield missing("slurm", slurm.trouble, todo)
        return
    partitions = ", ".join(slurm.clouds or ())
    yield ok("slurm", f"{slurm.version}, with the partitions {partitions}")
    if addresses.is_here(slurm.reports_to or ""):
        yield warning(
            "slurm",
            f"nodes report to {slurm.reports_to}, which is their own address; their reports arrive through the shared "
            "directory or the checkpoint store",
            "set HOLDFAST_PUBLIC_URL to an address of this service that nodes can reach",
        )


def check_skypilot(sky: LauncherOut | None) -> Iterator[Finding]:
    """Check SkyPilot, as last observed by the service."""
    if sky is None or not sky.configured:
        yield ok(
            "skypilot",
            "not connected, so jobs run on the service's machine; connect it with holdfast up",
        )
        return
    if sky.reachable is None:
        yield warning("skypilot", "not probed yet", "run this again in some seconds")
        return
    if sky.trouble:
        todo = "check that its API server is running; holdfast up starts one and connects the gate"
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
        return ok("skypilot", f"{sky.version}, a supported version")
    return missing(
        "skypilot",
        f"{sky.version} is not a supported version: jobs are observed, but none is launched",
        f"install skypilot=={VERSION} for its API server",
    )


def _clouds(sky: LauncherOut) -> Finding:
    if sky.clouds is None:
        todo = "run this again in a minute"
        return warning("clouds", "SkyPilot is still checking the credentials that it found", todo)
    if sky.clouds:
        return ok("clouds", ", ".join(sky.clouds))
    return missing(
        "clouds",
        "none is enabled: SkyPilot has found no working credentials",
        "log in on the machine of SkyPilot's server (aws configure, gcloud auth application-default login, ...), "
        "then holdfast up --stop and holdfast up; sky check shows the problem of each cloud",
    )


def _gate(sky: LauncherOut) -> Finding:
    if sky.guarantee != "exactly-once":
        return warning(
            "launches",
            f"{sky.guarantee}: after a lost response two clusters may run concurrently for a minute; only one of them can write",
            "holdfast up --configure prints what SkyPilot's server needs to ask this service first; then restart it",
        )
    if sky.waits_for_service:
        return warning(
            "launches",
            "exactly-once, but SkyPilot asks this service about all other requests as well: while it is down, preempted nodes "
            "are not replaced, and that server launches nothing",
            "install holdfast_gate.py beside SkyPilot's packages; holdfast up --configure prints where, and the other steps",
        )
    return ok("launches", "exactly-once: SkyPilot asks this service before it launches its jobs")


def _clock(sky: LauncherOut) -> Finding:
    if sky.clock_skew_s is None:
        return warning(
            "clock", "SkyPilot does not report its time", "synchronize its machine's clock"
        )
    skew = f"SkyPilot's clock is {abs(sky.clock_skew_s):.0f} s {'ahead of' if sky.clock_skew_s > 0 else 'behind'} the service's"
    if abs(sky.clock_skew_s) <= SKEW_S:
        return ok("clock", f"{skew}, within the resolution of HTTP dates")
    return warning("clock", skew, "synchronize both with NTP")


def _reports(sky: LauncherOut) -> Finding:
    url = sky.reports_to or ""
    if not addresses.is_here(url):
        return ok(
            "reports", f"nodes report to {url}; holdfast events JOB shows whether they reach it"
        )
    return warning(
        "reports",
        f"nodes report to {url}, which is their own address: they train, save and resume, and their reports arrive "
        "through the checkpoint store, some minutes late, if the job has one that this service may read and delete in; "
        "the service cannot make them save and exit before a limit is reached",
        "set HOLDFAST_PUBLIC_URL to an address of this service that nodes can reach, with TLS",
    )


def _after(refusal: Refused) -> str:
    match refusal.problem.status:
        case 401 | 403:
            return "set HOLDFAST_TOKEN to the token in the file `token` of the service's home directory"
        case 503:
            return "read the log of the service, and restart it"
        case _:
            return "check HOLDFAST_URL, and whether client and service have the same version"


def _name(launcher: LauncherOut) -> str:
    return f"the {launcher_name(launcher.engine)} launcher"
