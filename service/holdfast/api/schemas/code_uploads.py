"""What travels over the API when code is uploaded. The client reads these, too."""

from __future__ import annotations

from typing import Annotated, Final, NotRequired

from pydantic import ConfigDict, FailFast, Field, StrictBool, with_config
from typing_extensions import TypedDict

from holdfast.api.schemas.base import Schema
from holdfast.code_upload.tree import MOST_ENTRIES

DIGEST: Final = r"^[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=DIGEST)]


# Not a `Schema`: a folder has thousands of entries, and an object of pydantic takes twice as long as a dictionary.
@with_config(ConfigDict(extra="forbid"))
class EntryIn(TypedDict):
    """A file, a link or an empty folder of uploaded code."""

    path: Annotated[
        str,
        Field(
            max_length=2048,
            description="Relative, with slashes; that of an empty folder ends with one.",
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
                description="Where a symbolic link leads, inside of the folder; null for what is no link."
            ),
        ]
    ]


class TreeIn(Schema):
    """A folder of code."""

    # Of thousands of mistakes, one is named.
    entries: Annotated[list[EntryIn], FailFast()] = Field(
        max_length=MOST_ENTRIES, description="All files, links and empty folders."
    )


class TreeOut(Schema):
    """A folder of code, as far as it has arrived."""

    id: str = Field(description="For `code` of `POST /v1/jobs`, once nothing is missing.")
    missing: list[str] = Field(
        description="SHA-256 of pieces that are to be uploaded; then ask again."
    )


class PiecesOut(Schema):
    """What became of a bundle of pieces."""

    stored: int = Field(description="How many pieces it held.")
