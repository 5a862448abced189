"""What a job means on nodes that are processes of this machine."""

from __future__ import annotations

from typing import Final

from holdfast.domain.spec import JobSpec
from holdfast.errors import BadJobFile, Flaw

_UNABLE: Final = {
    "workdir": "clone the repository, and write the folder where it lies",
    "file_mounts": "put the files under workdir, or read them from where they are",
    "volumes": "use a folder of this machine",
    "service": "submit a job that ends",
    "pool": "leave it out",
    "execution": "leave it out, since a job file holds one task",
}
_IDLE: Final = frozenset({"infra", "use_spot", "job_recovery"})


def notes_of_local(spec: JobSpec) -> tuple[str, ...]:
    """What has no effect here, as sentences.

    Raises:
        BadJobFile: the job asks for something that cannot be done here.
    """
    flaws = tuple(
        Flaw(f"#/{word}", f"cannot be done on infra local; {way_out}")
        for word, way_out in _UNABLE.items()
        if word in spec.more
    )
    if flaws:
        raise BadJobFile(flaws)
    return tuple(
        f"resources.{word} has no effect on infra local: nodes are processes of this machine"
        for word in spec.resources
        if word not in _IDLE
    )
