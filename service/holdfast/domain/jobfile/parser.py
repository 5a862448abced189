"""A job file, read: YAML text becomes a `JobSpec`, or a list of what is wrong with it, each with its place.

Env values are taken as they are written (`no` stays `no`, `1e3` stays `1e3`): YAML's guesses about types are for
numbers and switches, not for what a program reads from its environment.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import yaml

from holdfast.domain.jobfile.bounded_yaml import NotReadable, compose, construct
from holdfast.domain.jobfile.deprecated import migrate_deprecated
from holdfast.domain.jobfile.env_vars import ENVS, SECRETS, duplicate_names, variables
from holdfast.domain.jobfile.spec import JobFile, JobSpec
from holdfast.domain.jobfile.validation import validate
from holdfast.errors import BadJobFile, Flaw

_BIGGEST: Final = 2**63
_AS_WRITTEN: Final = frozenset({"name", "envs", "secrets"})
_TYPED: Final = frozenset(
    {"name", "num_nodes", "workdir", "setup", "run", "envs", "secrets", "resources", "holdfast"}
)


@dataclass(frozen=True, slots=True)
class ParsedJobFile:
    """A job file after reading."""

    spec: JobSpec
    notes: tuple[str, ...]
    """What was put right, as sentences for the person who wrote it."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values by name. They are in no other place: what is stored, rendered or shown has the names alone."""
    notify: Sequence[str] = field(default=(), repr=False)
    """URLs to which news of the job goes; they are in no other place, either."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What the command line says over the file."""

    name: str | None = None
    """None: the name of the file stands."""
    envs: Mapping[str, str] | None = None
    """Values that replace or join those of the file."""
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    """The same for secrets."""
    base_dir: str | None = None
    """Folder that relative paths are relative to; None where there is none, as through the plain API."""
    home_dir: str | None = None
    """Folder that `~` stands for in paths of the person's machine; None likewise."""
    code: str | None = None
    """Uploaded code instead of the folder of the file; None: the folder stands."""


def read(text: str, overrides: Overrides = Overrides()) -> ParsedJobFile:
    """The job that a file describes.

    Raises:
        BadJobFile: with every mistake that was found, each with a JSON pointer and a way out.
    """
    raw, nodes = _load(text)
    if flaws := tuple(_oddities({key: raw[key] for key in raw if key not in _AS_WRITTEN})):
        raise BadJobFile(flaws)
    envs, env_flaws = variables(ENVS, nodes.get("envs"), overrides.envs or {})
    secrets, secret_flaws = variables(SECRETS, nodes.get("secrets"), overrides.secrets or {})
    raw, notes = migrate_deprecated(raw)
    if isinstance(node := nodes.get("name"), yaml.ScalarNode) and raw["name"] is not None:
        raw["name"] = node.value
    if overrides.name is not None:
        raw["name"] = overrides.name
    file, file_flaws = validate({**raw, "envs": envs, "secrets": secrets})
    workdir, workdir_flaws = _workdir(raw.get("workdir"), overrides)
    mounts, mount_flaws = _mounts(raw.get("file_mounts"), overrides)
    flaws = (
        *env_flaws,
        *secret_flaws,
        *duplicate_names(envs, secrets),
        *file_flaws,
        *workdir_flaws,
        *mount_flaws,
    )
    if file is None or flaws:
        raise BadJobFile(flaws)
    spec = _spec(file, {**raw, "file_mounts": mounts}, workdir)
    return ParsedJobFile(spec, notes, secrets, tuple(file.holdfast.notify))


def _load(text: str) -> tuple[dict[str, Any], dict[str, yaml.Node]]:
    """The document, and the nodes of its words as they are written."""
    try:
        nodes = compose(text)
        documents = [construct(node, text) for node in nodes]
    except NotReadable as error:
        raise _wrong(f"the job file {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) > 1 else "no mapping"
        raise _wrong(f"a job file is one mapping such as `run: ...`; found {found}")
    raw: dict[Any, Any] = documents[0]
    if odd := [key for key in raw if not isinstance(key, str)]:
        raise _wrong(f"{odd[0]!r} is not a word of a job file; put it in quotes or remove it")
    return raw, {key.value: value for key, value in nodes[0].value}


def _wrong(message: str) -> BadJobFile:
    return BadJobFile((Flaw("#", message),))


def _oddities(raw: dict[str, Any]) -> Iterator[Flaw]:
    """What YAML can say and no task can hold."""
    waiting: list[tuple[str, Any]] = [("#", raw)]
    while waiting:
        pointer, value = waiting.pop()
        match value:
            case dict():
                waiting += [(pointer, key) for key in value]
                waiting += [(f"{pointer}/{key}", item) for key, item in value.items()]
            case list():
                waiting += [(f"{pointer}/{n}", item) for n, item in enumerate(value)]
            case None | str() | bool() | date():
                pass
            case int() | float() if abs(value) < _BIGGEST:
                pass
            case int() | float():
                yield Flaw(pointer, "is a number without end; write one that a machine can hold")
            case _:
                yield Flaw(pointer, "is not plain text or a number; put it in quotes")


def _spec(file: JobFile, raw: dict[str, Any], workdir: str | None) -> JobSpec:
    run = shlex.join(file.run) if isinstance(file.run, list) else file.run
    more = {key: value for key, value in raw.items() if key not in _TYPED and value is not None}
    if isinstance(file.workdir, dict):
        more["workdir"] = (
            file.workdir
        )  # A git repository: only an engine that clones can make something of it.
    return JobSpec(
        name=file.name or "job",
        num_nodes=file.num_nodes,
        workdir=workdir,
        setup=file.setup,
        run=run,
        envs=file.envs,
        secrets=tuple(sorted(file.secrets)),
        resources=dict(raw.get("resources") or {}),
        more=more,
        holdfast=file.holdfast.model_copy(update={"notify": []}),
    )


def _workdir(workdir: Any, overrides: Overrides) -> tuple[str | None, tuple[Flaw, ...]]:
    """The folder itself, None where there is none, or a repository instead; and what is wrong with it."""
    if overrides.code is not None:
        if isinstance(workdir, dict):
            return None, (Flaw("#/workdir", "is a repository, and code was uploaded; use one"),)
        return overrides.code, ()
    if not isinstance(workdir, str):
        return None, ()
    folder, problem = _settled(workdir, overrides)
    return folder, (Flaw("#/workdir", problem),) if problem else ()


def _mounts(mounts: Any, overrides: Overrides) -> tuple[Any, tuple[Flaw, ...]]:
    """`file_mounts` with sources of this machine made absolute, and what is wrong with any path."""
    if not isinstance(mounts, dict):
        return mounts, ()
    flaws: list[Flaw] = []
    settled: dict[Any, Any] = {}
    for target, mount in mounts.items():
        place = f"#/file_mounts/{target}"
        source = mount.get("source") if isinstance(mount, dict) else mount
        settled[target] = mount
        if str(target).endswith("/") or (isinstance(source, str) and source.endswith("/")):
            flaws.append(Flaw(place, "a path that ends with a slash is refused; leave it out"))
        if not isinstance(source, str) or "://" in source or source.startswith("$"):
            continue  # No path of this machine, or one that only SkyPilot can fill in.
        here, problem = _settled(source, overrides)
        if problem:
            flaws.append(Flaw(place, problem))
        settled[target] = {**mount, "source": here} if isinstance(mount, dict) else here
    return settled, tuple(flaws)


def _settled(path: str, overrides: Overrides) -> tuple[str, str | None]:
    """A path of the person's machine made absolute, and None; or as it is, and why it cannot be."""
    if path.startswith("/"):
        return path, None
    first, _, rest = path.partition("/")
    if first == "~":
        folder, lack = overrides.home_dir, "is in a home, and the request has no home_dir"
    elif first.startswith("~"):
        folder, lack = None, "is in the home of somebody else"
    else:
        folder, lack = overrides.base_dir, "is relative, and the request has no base_dir"
        rest = path
    if folder is None:
        return path, f"{path!r} {lack}; write an absolute path"
    return posixpath.normpath(posixpath.join(folder, rest.lstrip("/"))), None
