"""Confinement of jobs whose users have no rights on the service's machine.

Also the paths that jobs use there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import ValidationIssue

CONFIG_KEYS: Final = frozenset({"slurm", "docker", "nvidia_gpus"})
"""Keys of `config` that affect only the job's own nodes. Others select a workspace, a service account or host folders of a pod."""
BUCKETS: Final = frozenset(
    {"s3", "gs", "r2", "cos", "oci", "nebius", "cw", "vastdata", "https", "huggingface", "hf"}
)
"""URL schemes of mounts that do not refer to files of the service's machine."""

MAX_LOCAL_NODES: Final = 64
"""Maximum nodes of a confined local job.

A lower value refuses tests with many nodes. A higher value lets one job start as many supervisor processes and copies of its
folder.
"""

_MACHINE: Final = (
    "is for admins of the service because it uses the rights of the service's machine; remove it"
)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path on the service's machine that a job uses."""

    pointer: str
    path: str
    is_copied: bool
    """Whether the service copies the path, excluding its own home directory."""


def sources_of(mounts: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield target and source of each entry of `file_mounts`."""
    for target, mount in mounts.items():
        source = mount.get("source") if isinstance(mount, Mapping) else mount
        for item in source if isinstance(source, list) else [source]:
            yield str(target), item


def named(spec: JobSpec) -> Iterator[NamedPath]:
    """Yield all paths on the service's machine that a job uses."""
    if spec.workdir is not None and spec.workdir.startswith("/"):
        yield NamedPath("#/workdir", spec.workdir, is_copied=True)
    for target, source in sources_of(spec.more.get("file_mounts") or {}):
        if isinstance(source, str) and source.startswith("/"):
            yield NamedPath(f"#/file_mounts/{target}", source, is_copied=False)


def store_folder(spec: JobSpec) -> str | None:
    """The local or cluster folder of the job's checkpoints; None for other stores."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or spec.engine is Engine.SKYPILOT:
        return None
    parts = urlsplit(checkpoint.store)
    return unquote(parts.path) if parts.scheme == "file" else None


def engines_of(spec: JobSpec) -> tuple[Engine, ...]:
    """Engines of a job: its own, and Slurm if SkyPilot would use a Slurm cluster."""
    words = (candidate.options for candidate in spec.options)
    clouds = {candidate.cloud for candidate in spec.options}
    clouds |= {str(one.get("cloud") or "").strip().lower() for one in words}
    return (spec.engine, Engine.SLURM) if Engine.SLURM in clouds else (spec.engine,)


def confinement_flaws(spec: JobSpec, *, profiles: Collection[str]) -> Iterator[ValidationIssue]:
    """Settings that a confined job must not use, with remedies.

    `profiles` are the AWS profiles it may use.
    """
    for word in ("event_callback", "api_server_access"):
        if spec.more.get(word):
            yield ValidationIssue(f"#/{word}", _MACHINE)
    for word in sorted(map(str, (spec.more.get("config") or {}).keys() - CONFIG_KEYS)):
        yield ValidationIssue(f"#/config/{word}", _MACHINE)
    if spec.workdir is not None and "$" in spec.workdir:
        yield ValidationIssue(
            "#/workdir",
            "contains a variable, which SkyPilot may expand to any value; write the full path",
        )
    yield from _machine_flaws(spec)
    for target, source in sources_of(spec.more.get("file_mounts") or {}):
        if why := _source_error(source):
            yield ValidationIssue(f"#/file_mounts/{target}", why)
    profile = spec.envs.get("AWS_PROFILE")
    if profile is not None and profile not in profiles:
        yield ValidationIssue(
            "#/envs/AWS_PROFILE",
            f"{profile!r} is a profile of the service's machine, and HOLDFAST_STORE_PROFILES does not allow it; "
            "give the job its own keys",
        )


def _machine_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    if spec.engine is Engine.LOCAL and spec.num_nodes > MAX_LOCAL_NODES:
        message = f"is {spec.num_nodes}; jobs of users have at most {MAX_LOCAL_NODES} nodes on the service's machine"
        yield ValidationIssue("#/num_nodes", message)
    for target, volume in (spec.more.get("volumes") or {}).items():
        if isinstance(volume, Mapping) and "host_path" in volume:
            yield ValidationIssue(f"#/volumes/{target}/host_path", _MACHINE)


def _source_error(source: Any) -> str:
    if source is None:
        return ""  # A bucket by name.
    if not isinstance(source, str):
        return f"{source!r} is not a path or a bucket; write a text"
    scheme, colon, rest = source.partition("://")
    if colon:
        host = rest.partition("/")[0]
        known = scheme in BUCKETS and host
        return "" if known else f"{source!r} is not a bucket; write one such as s3://bucket/prefix"
    if not source.startswith("/"):
        return f"{source!r} is not an absolute path; write the full path"
    return (
        "contains a variable, which SkyPilot may expand to any value; write the full path"
        if "$" in source
        else ""
    )
