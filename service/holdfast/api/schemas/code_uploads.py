"""Schemas of code uploads; shared with the client."""

from __future__ import annotations

from typing import Annotated, Final, NotRequired

from pydantic import ConfigDict, FailFast, Field, StrictBool, with_config
from typing_extensions import TypedDict

from holdfast.api.schemas.base import Schema
from holdfast.code_upload.tree import MOST_ENTRIES

DIGEST: Final = r"^[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=DIGEST)]


# Not a `Schema`: a directory has thousands of entries, and a Pydantic object takes twice as long as a dictionary.
@with_config(ConfigDict(extra="forbid"))
class EntryIn(TypedDict):
    """A file, a link or an empty directory of uploaded code."""

    path: Annotated[
        str,
        Field(
            max_length=2048,
            description="Relative, with slashes; that of an empty directory ends with one.",
        ),
    ]
    size_bytes: NotRequired[
        Annotated[
            int,
            Field(
                ge=0, le=2**40, description="Length of a file.", json_schema_extra={"default": 0}
            ),
        ]
    ]
    pieces: NotRequired[
        Annotated[
            list[Digest],
            Field(
                max_length=2**18,
                description="SHA-256 of each 4 MiB of a file in order, the last one shorter; none for an empty file.",
            ),
        ]
    ]
    is_executable: NotRequired[Annotated[StrictBool, Field(json_schema_extra={"default": False})]]
    link: NotRequired[
        Annotated[
            Annotated[str, Field(max_length=2048)] | None,
            Field(
                description="Target of a symbolic link, inside of the directory; null for other entries."
            ),
        ]
    ]


class TreeIn(Schema):
    """A directory of code."""

    # Of thousands of mistakes, only one is reported.
    entries: Annotated[list[EntryIn], FailFast()] = Field(
        max_length=MOST_ENTRIES, description="All files, links and empty directories."
    )


class TreeOut(Schema):
    """An uploaded directory and its missing pieces."""

    id: str = Field(description="For `code` of `POST /v1/jobs`, once no piece is missing.")
    missing: list[str] = Field(
        description="SHA-256 of the pieces to upload before repeating the request."
    )


class PiecesOut(Schema):
    """Result of uploading a bundle of pieces."""

    stored: int = Field(description="Number of pieces in it.")
