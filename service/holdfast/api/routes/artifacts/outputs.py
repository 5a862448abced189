"""Output files of a job: list and download."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from fastapi.responses import StreamingResponse

from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.checkpoints import LeftOutFileOut, OutputFileOut, OutputsOut
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import NotFound
from holdfast.submission.output_files import JobOutputs

router = Router(prefix="/v1/jobs/{job_id}/outputs", tags=["artifacts"])

MEDIA_TYPE = "application/octet-stream"


@router.get("", response_model=OutputsOut)
def list_outputs(job: TheJob, services: TheServices) -> OutputsOut:
    """List the output files of all nodes of the newest attempt that has ended by itself.

    The list is read from the job's checkpoint store.
    """
    outputs = JobOutputs.open(services, job)
    found = outputs.newest() if outputs else None
    spec = JobSpec.from_stored(services.journal.submission(job.id).spec)
    files = found.files if found else ()
    first = found.first if found else None
    return OutputsOut(
        patterns=spec.holdfast.outputs,
        epoch=first.epoch if first else None,
        attempt=first.attempt if first else None,
        exit_code=first.exit_code if first else None,
        collected_at=first.collected_at if first else None,
        size_bytes=sum(each.file.size_bytes for each in files),
        files=[
            OutputFileOut(
                node=each.node,
                number=each.number,
                path=each.path,
                size_bytes=each.file.size_bytes,
                sha256=each.file.sha256,
                parts=len(each.file.parts),
            )
            for each in files
        ],
        left_out=[
            LeftOutFileOut(node=left.node, path=left.path, reason=left.reason)
            for left in (found.left_out if found else ())
        ],
        left_out_count=found.left_out_count if found else 0,
    )


@router.get(
    "/{number}",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}},
)
def download_output(
    job: TheJob,
    services: TheServices,
    number: int,
    *,
    epoch: Annotated[
        int | None, Query(ge=0, le=MAX_COUNT, description="Epoch of the list; default: any.")
    ] = None,
    part: Annotated[
        int | None, Query(ge=0, le=MAX_COUNT, description="One part; default: the whole file.")
    ] = None,
) -> StreamingResponse:
    """Download an output file by its number, or one of its parts of 16 MiB."""
    if (outputs := JobOutputs.open(services, job)) is None:
        raise NotFound(f"job {job.id} keeps no output files; add holdfast.outputs to its file")
    collection, file = outputs.find(number, epoch)
    content = outputs.parts(collection, file, part)
    name = quote(file.path.rpartition("/")[2], safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    if part is None:
        headers["Content-Length"] = str(file.size_bytes)
    return StreamingResponse(content, media_type=MEDIA_TYPE, headers=headers)
