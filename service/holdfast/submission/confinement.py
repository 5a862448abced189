"""Jobs that would use the service's machine without the right to are refused when they are submitted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.code_upload.upload_store import is_upload
from holdfast.domain.access.permissions import Caller
from holdfast.domain.jobfile.confinement import engines_of, named, store_folder, wrong_words
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile, Flaw, Forbidden
from holdfast.host.allowed_folders import Folders
from holdfast.services import Services

_SEND: Final = "; holdfast submit --upload sends a folder with the job"


def confine(services: Services, spec: JobSpec, caller: Caller, project: str) -> bool:
    """Whether the job is confined: its submitter has no rights to the service's machine.

    Raises:
        Forbidden: jobs of this caller do not run there.
        BadJobFile: it names what such a job may not use.
    """
    is_confined, rules = not caller.is_trusted, services.confinement
    if is_confined and (whys := [*filter(None, map(rules.refused.get, engines_of(spec)))]):
        raise Forbidden(f"{spec.name}: {whys[0]}")
    flaws = list(_lost_code(services, spec))
    flaws += _wrong_folders(spec, rules.folders.of_job(project, is_confined=is_confined))
    if is_confined:
        flaws += wrong_words(spec, profiles=rules.profiles)
    if flaws:
        raise BadJobFile(tuple(flaws))
    return is_confined


def _lost_code(services: Services, spec: JobSpec) -> Iterator[Flaw]:
    """Uploaded code that the service does not have; where it has it, it stays."""
    if spec.workdir is None or not is_upload(spec.workdir):
        return
    if services.uploads is None or not services.uploads.use(spec.workdir):
        lost = "is uploaded code that is not here, or not any more; submit the job with its folder again"
        yield Flaw("#/workdir", lost)


def _wrong_folders(spec: JobSpec, folders: Folders) -> Iterator[Flaw]:
    for one in named(spec):
        if why := folders.refusal(Path(one.path), without_home=one.is_copied):
            is_sendable = folders.is_confined and one.pointer == "#/workdir"
            yield Flaw(one.pointer, f"{one.path} {why}{_SEND if is_sendable else ''}")
    store = store_folder(spec)
    if store is not None and folders.is_confined and (why := folders.refusal(Path(store))):
        yield Flaw("#/holdfast/checkpoint/store", f"{store} {why}")
