"""Container images: whether what a job names is the same image next month. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.candidates import candidates

_DOCKER: Final = "docker:"
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


def notes_of_images(resources: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each image that is named by a tag alone."""
    said = [each.words.get("image_id") for each in candidates(resources)]
    for image in dict.fromkeys(name for one in said for name in _names(one)):
        if is_pinned(image) is False:
            name = image.removeprefix(_DOCKER)
            yield (
                f"resources.image_id: {name} is a tag, and may be another image tomorrow; to get the same one again, write "
                f"{_DOCKER}{_bare(name)}@sha256:... as `docker inspect --format '{{{{index .RepoDigests 0}}}}' {name}` tells it"
            )


def is_pinned(image: object) -> bool | None:
    """Whether an image stays the same for ever: by its digest, or as a machine image of a cloud; None where there is none."""
    names = list(_names(image))
    if not names:
        return None
    return all(not name.startswith(_DOCKER) or bool(_DIGEST.search(name)) for name in names)


def _names(image: object) -> Iterator[str]:
    """One image, or one for each region."""
    if isinstance(image, str):
        yield image
    elif isinstance(image, Mapping):
        yield from (name for name in image.values() if isinstance(name, str))


def _bare(name: str) -> str:
    """The repository of an image: a colon after the last slash begins its tag, one before it a port."""
    folder, slash, last = name.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
