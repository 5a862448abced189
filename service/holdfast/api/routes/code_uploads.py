"""Code that clients upload for their jobs: pieces of files, and directories made of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Request, Response

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.code_uploads import DIGEST, PiecesOut, TreeIn, TreeOut
from holdfast.code_upload.tree import MOST_ENTRIES, PIECE_BYTES, TreeEntry
from holdfast.code_upload.upload_store import Uploads
from holdfast.errors import BadRequest, StoreUnavailable
from holdfast.submission.admission import uploads_of

router = Router(prefix="/v1/code", tags=["code"])


_BINARY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""OpenAPI description of a body that is not JSON."""


def _open(services: TheServices, caller: TheCaller) -> Uploads:
    uploads = uploads_of(services, caller)
    if trouble := services.disk_error():
        raise StoreUnavailable(trouble)
    return uploads


async def _body(request: Request) -> bytes:
    return await request.body()


TheUploads = Annotated[Uploads, Depends(_open)]
TheBody = Annotated[bytes, Depends(_body)]
"""The body as received, whatever its declared type."""


@router.put("/pieces/{digest}", status_code=204, response_class=Response, openapi_extra=_BINARY)
def put_piece(
    digest: Annotated[str, Path(pattern=DIGEST)],
    body: TheBody,
    uploads: TheUploads,
    caller: TheCaller,
) -> None:
    """Upload a piece of a file, at most 4 MiB, under its SHA-256. Repeating it changes nothing."""
    if len(body) > PIECE_BYTES:
        raise BadRequest(
            f"a piece has at most {PIECE_BYTES} bytes; send the rest as further pieces"
        )
    uploads.add_pieces(caller.name, [(digest, body)])


@router.post("/pieces", response_model=PiecesOut, openapi_extra=_BINARY)
def put_pieces(body: TheBody, uploads: TheUploads, caller: TheCaller) -> PiecesOut:
    """Upload many small pieces at once: a tar whose files are named by their SHA-256."""
    try:
        pieces = list(_unpacked(body))
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise BadRequest(f"the body is not a tar of files: {error}") from error
    uploads.add_pieces(caller.name, pieces)
    return PiecesOut(stored=len(pieces))


@router.post("/trees", response_model=TreeOut)
def put_tree(body: TreeIn, uploads: TheUploads, caller: TheCaller) -> TreeOut:
    """Create a directory from pieces.

    If some are missing, the response names them and nothing is created.
    """
    entries = [
        TreeEntry(
            path=entry["path"],
            size_bytes=entry.get("size_bytes", 0),
            pieces=tuple(entry.get("pieces", ())),
            is_executable=entry.get("is_executable", False),
            link=entry.get("link"),
        )
        for entry in body.entries
    ]
    tree = uploads.add_tree(caller.name, entries)
    return TreeOut(id=tree.id, missing=list(tree.missing))


def _unpacked(body: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(
        fileobj=io.BytesIO(body), mode="r:"
    ) as tar:  # A compressed archive could expand without limit.
        for number, member in enumerate(tar):
            if not member.isreg() or member.sparse is not None or number >= MOST_ENTRIES:
                raise ValueError(f"{member.name[:100]!r} is not a regular file")
            file = tar.extractfile(member)
            assert file
            yield member.name, file.read()
