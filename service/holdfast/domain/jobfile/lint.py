"""Container images: whether what a job names is the same image next month. Pure.

How accelerators are spread over nodes: many nodes of few are slower than few nodes of many. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import candidates

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


_COUNTED: Final = re.compile(r"\s*([^:]+?)\s*(?::\s*(\d+))?\s*")
MOST_IN_ONE: Final = 8
"""Accelerators that clouds build into one node. More would advise nodes that nobody sells, fewer keeps silent about some that are."""


def notes_of_spread(resources: Mapping[str, Any], nodes: int) -> Iterator[str]:
    """A sentence for each kind of accelerator of which one node could hold all that the job asks for."""
    asked = [pair for each in candidates(resources) for pair in _pairs(each.words.get("accelerators"))]  # fmt: skip
    for name, count in dict.fromkeys(asked):
        total = nodes * count
        if nodes > 1 and total <= MOST_IN_ONE:
            yield (
                f"num_nodes: {nodes} nodes of {name}:{count} pass all gradients over the network at each step; one node of "
                f"{name}:{total} is usually faster, where it is to be had"
            )


def _pairs(accelerators: object) -> Iterator[tuple[str, int]]:
    """Names and counts; nothing of what is written in another way, which others judge."""
    match accelerators:
        case str() if found := _COUNTED.fullmatch(accelerators):
            yield found[1], int(found[2] or 1)
        case Mapping():
            yield from (
                (str(name), int(n)) for name, n in accelerators.items() if isinstance(n, int)
            )
        case list() | set():
            for one in accelerators:
                yield from _pairs(one)
