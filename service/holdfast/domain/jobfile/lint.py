"""Notes on job files: unpinned images, and accelerators on needlessly many nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import resource_options

_DOCKER: Final = "docker:"
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


def image_notes(resources: Mapping[str, Any]) -> Iterator[str]:
    """Notes on container images that are named by a tag only."""
    images = [each.options.get("image_id") for each in resource_options(resources)]
    for image in dict.fromkeys(name for one in images for name in _names(one)):
        if is_pinned(image) is False:
            name = image.removeprefix(_DOCKER)
            yield (
                f"resources.image_id: {name} is a tag and may change; to pin it, write "
                f"{_DOCKER}{_repository(name)}@sha256:... as `docker inspect --format '{{{{index .RepoDigests 0}}}}' {name}` prints it"
            )


def is_pinned(image: object) -> bool | None:
    """Whether an image is immutable, by digest or as a machine image; None without an image."""
    names = list(_names(image))
    if not names:
        return None
    return all(not name.startswith(_DOCKER) or bool(_DIGEST.search(name)) for name in names)


def _names(image: object) -> Iterator[str]:
    """A single image, or one per region."""
    if isinstance(image, str):
        yield image
    elif isinstance(image, Mapping):
        yield from (name for name in image.values() if isinstance(name, str))


def _repository(name: str) -> str:
    """The repository of an image name.

    A colon after the last slash starts the tag, an earlier one a port.
    """
    folder, slash, last = name.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


_COUNTED: Final = re.compile(r"\s*([^:]+?)\s*(?::\s*(\d+))?\s*")
MAX_PER_NODE: Final = 8
"""Accelerators per node that clouds offer. A higher value recommends nodes that do not exist; a lower value misses some."""


def spread_notes(resources: Mapping[str, Any], nodes: int) -> Iterator[str]:
    """Notes on accelerators that would fit on a single node."""
    asked = [pair for each in resource_options(resources) for pair in _accelerator_counts(each.options.get("accelerators"))]  # fmt: skip
    for name, count in dict.fromkeys(asked):
        total = nodes * count
        if nodes > 1 and total <= MAX_PER_NODE:
            yield (
                f"num_nodes: {nodes} nodes of {name}:{count} pass all gradients over the network at each step; one node of "
                f"{name}:{total} is usually faster, where available"
            )


def _accelerator_counts(accelerators: object) -> Iterator[tuple[str, int]]:
    """Names and counts of accelerators; other notations are validated elsewhere."""
    match accelerators:
        case str() if found := _COUNTED.fullmatch(accelerators):
            yield found[1], int(found[2] or 1)
        case Mapping():
            yield from (
                (str(name), int(n)) for name, n in accelerators.items() if isinstance(n, int)
            )
        case list() | set():
            for one in accelerators:
                yield from _accelerator_counts(one)
