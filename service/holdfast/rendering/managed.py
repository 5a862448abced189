"""What makes a task one that SkyPilot's managed jobs can run: name, mounts, setup, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.images import notes_of_images
from holdfast.domain.spec import JobSpec
from holdfast.domain.spread import notes_of_spread
from holdfast.errors import BadJobFile, Flaw
from holdfast.rendering.launch import WHEEL_MOUNT, WHEEL_PLACEHOLDER
from holdfast.rendering.nodes import nodes, wrong_nodes

_REFUSED: Final = {
    "service": "is served by `sky serve`, not by a job; submit one that ends",
    "pool": "is made by `sky jobs pool apply`, not by a job; leave it out",
    "execution": "is about several tasks, and a job file holds one; leave it out",
    "experimental": "is not known to SkyPilot 0.14; write what stands below it under config",
}
_WORKER: Final = re.compile(r"holdfast[-_]worker")
_VARIABLE: Final = re.compile(r"\$\{?\b([A-Za-z_][A-Za-z0-9_]*)\b\}?")
_BREAKS_JSON: Final = re.compile(r'["\\\x00-\x1f]')


def managed(spec: JobSpec, house: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The words of a task that differ for a managed job, and what its user should know.

    Raises:
        BadJobFile: with everything that SkyPilot would refuse, or look for without end.
    """
    if flaws := (*_wrong_words(spec), *_wrong_substitutions(spec), *wrong_nodes(spec)):
        raise BadJobFile(flaws)
    resources, notes = nodes(spec, house["resources"])
    words = {
        "name": task_name(spec.name),
        "resources": resources,
        "file_mounts": {**spec.more.get("file_mounts", {}), WHEEL_MOUNT: WHEEL_PLACEHOLDER},
        "setup": _setup(spec),
    }
    said = (*notes_of_images(spec.resources), *notes_of_spread(spec.resources, spec.num_nodes))
    return words, (*notes, *said, *_folder_that_goes(spec))


def task_name(name: str) -> str:
    """The name as SkyPilot accepts one: ASCII letters and digits, with one or two of `._-` between them."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return re.sub(r"[._-]{3,}", "-", plain).strip("._-") or "job"


def _setup(spec: JobSpec) -> str:
    """The user's setup after the installation of the worker: bare where nothing says that it will be used."""
    scripts = f"{spec.setup or ''}\n{spec.run}"
    used = spec.holdfast.checkpoint is not None or _WORKER.search(scripts)
    install = f"bash {WHEEL_MOUNT}/install.sh {'worker' if used else 'bare'} || exit 1"
    return install if spec.setup is None else f"{install}\n{spec.setup}"


def _wrong_words(spec: JobSpec) -> Iterator[Flaw]:
    for word, problem in _REFUSED.items():
        if word in spec.more:
            yield Flaw(f"#/{word}", problem)
    if WHEEL_MOUNT in spec.more.get("file_mounts", {}):
        yield Flaw(f"#/file_mounts/{WHEEL_MOUNT}", "is where the worker lies; mount it elsewhere")


def _wrong_substitutions(spec: JobSpec) -> Iterator[Flaw]:
    """Values that SkyPilot would put into paths as they are, where they would become syntax of its own."""
    paths = json.dumps(
        [spec.workdir, *(spec.more.get(word) for word in ("workdir", "file_mounts", "volumes"))]
    )
    for name in dict.fromkeys(_VARIABLE.findall(paths)):
        if name in spec.secrets:
            problem = (
                "stands in a path of file_mounts, workdir or volumes, where SkyPilot would fill in the secret and show it; "
                "write the path out"
            )
            yield Flaw(f"#/secrets/{name}", problem)
        if _BREAKS_JSON.search(spec.envs.get(name, "")):
            problem = (
                "holds a quote, a backslash or a line break, and stands in a path of file_mounts, workdir "
                "or volumes; write the path out"
            )
            yield Flaw(f"#/envs/{name}", problem)


def _folder_that_goes(spec: JobSpec) -> Iterator[str]:
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or not checkpoint.store.startswith("file://"):
        return
    folder = checkpoint.store.removeprefix("file://")
    mounted = [*spec.more.get("file_mounts", {}), *spec.more.get("volumes", {})]
    if not any(folder == path or folder.startswith(f"{path}/") for path in mounted):
        yield (
            f"holdfast.checkpoint.store: {folder} is a folder of a node and goes with it, unless all nodes share it; "
            "write s3://bucket/prefix"
        )
