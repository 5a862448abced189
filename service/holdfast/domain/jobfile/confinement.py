"""What the job of a user without rights to the service's machine may not ask for, and which folders of it a job names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.domain.jobfile.resource_options import candidates
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import Flaw

CONFIG_WORDS: Final = frozenset({"slurm", "docker", "nvidia_gpus"})
"""Of `config`, what changes the job's own nodes alone. Others choose a workspace, a service account, or folders of a pod's host."""
BUCKETS: Final = frozenset(
    {"s3", "gs", "r2", "cos", "oci", "nebius", "cw", "vastdata", "https", "huggingface", "hf"}
)
"""Schemes of mounts that name no file of a machine of ours."""

MOST_LOCAL_NODES: Final = 64
"""Of one confined job on the service's machine. A lower value refuses tests with many nodes; a higher value lets one job start as
many processes of the service, which guard its nodes, and as many copies of its folder."""

_MACHINE: Final = "is for admins of the service, as it acts with the rights of the service's machine; leave it out"


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A folder or file of the service's machine that a job names."""

    pointer: str
    path: str
    is_copied: bool
    """Whether the service copies it, and leaves its own home out of the copy."""


def sources_of(mounts: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Target and source of each of `file_mounts`."""
    for target, mount in mounts.items():
        source = mount.get("source") if isinstance(mount, Mapping) else mount
        for item in source if isinstance(source, list) else [source]:
            yield str(target), item


def named(spec: JobSpec) -> Iterator[NamedPath]:
    """The folders and files of the service's machine that a job names."""
    if spec.workdir is not None and spec.workdir.startswith("/"):
        yield NamedPath("#/workdir", spec.workdir, is_copied=True)
    for target, source in sources_of(spec.more.get("file_mounts") or {}):
        if isinstance(source, str) and source.startswith("/"):
            yield NamedPath(f"#/file_mounts/{target}", source, is_copied=False)


def store_folder(spec: JobSpec) -> str | None:
    """The folder of this machine or of the cluster that holds the job's checkpoints; None: they are elsewhere."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or spec.engine is Engine.SKYPILOT:
        return None
    parts = urlsplit(checkpoint.store)
    return unquote(parts.path) if parts.scheme == "file" else None


def engines_of(spec: JobSpec) -> tuple[Engine, ...]:
    """The engine of a job, and Slurm where SkyPilot would send it to a Slurm cluster."""
    words = (candidate.words for candidate in candidates(spec.resources))
    clouds = {candidate.cloud for candidate in candidates(spec.resources)}
    clouds |= {str(one.get("cloud") or "").strip().lower() for one in words}
    return (spec.engine, Engine.SLURM) if Engine.SLURM in clouds else (spec.engine,)


def wrong_words(spec: JobSpec, *, profiles: Collection[str]) -> Iterator[Flaw]:
    """What a confined job may not say, with a way out. `profiles` are those of AWS that it may name."""
    for word in ("event_callback", "api_server_access"):
        if spec.more.get(word):
            yield Flaw(f"#/{word}", _MACHINE)
    for word in sorted(map(str, (spec.more.get("config") or {}).keys() - CONFIG_WORDS)):
        yield Flaw(f"#/config/{word}", _MACHINE)
    if spec.workdir is not None and "$" in spec.workdir:
        yield Flaw(
            "#/workdir", "holds a variable, and SkyPilot may fill in any; write the path out"
        )
    yield from _wrong_machines(spec)
    for target, source in sources_of(spec.more.get("file_mounts") or {}):
        if why := _wrong_source(source):
            yield Flaw(f"#/file_mounts/{target}", why)
    profile = spec.envs.get("AWS_PROFILE")
    if profile is not None and profile not in profiles:
        yield Flaw(
            "#/envs/AWS_PROFILE",
            f"{profile!r} is a profile of the service's machine, and HOLDFAST_STORE_PROFILES does not allow it; "
            "give the job keys of its own",
        )


def _wrong_machines(spec: JobSpec) -> Iterator[Flaw]:
    if spec.engine is Engine.LOCAL and spec.num_nodes > MOST_LOCAL_NODES:
        most = f"is {spec.num_nodes}; jobs of users have at most {MOST_LOCAL_NODES} nodes on the service's machine"
        yield Flaw("#/num_nodes", most)
    for target, volume in (spec.more.get("volumes") or {}).items():
        if isinstance(volume, Mapping) and "host_path" in volume:
            yield Flaw(f"#/volumes/{target}/host_path", _MACHINE)


def _wrong_source(source: Any) -> str:
    if source is None:
        return ""  # A bucket by its name.
    if not isinstance(source, str):
        return f"{source!r} is not a path or a bucket; write a text"
    scheme, colon, rest = source.partition("://")
    if colon:
        host = rest.partition("/")[0]
        known = scheme in BUCKETS and host
        return "" if known else f"{source!r} is not a bucket; write one such as s3://bucket/prefix"
    if not source.startswith("/"):
        return f"{source!r} is not an absolute path; write the path out"
    return (
        "holds a variable, and SkyPilot may fill in any; write the path out"
        if "$" in source
        else ""
    )
