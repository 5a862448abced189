"""Job file parser: YAML text becomes a `JobSpec`, or a list of mistakes with their places.

Values of `envs` are kept as written (`no` stays `no`, `1e3` stays `1e3`): YAML types apply to numbers and switches only.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import yaml

from holdfast.domain.jobfile.bounded_yaml import (
    NotReadable,
    RepeatedKey,
    compose,
    construct,
    repeated_keys,
)
from holdfast.domain.jobfile.deprecated import migrate_deprecated
from holdfast.domain.jobfile.env_vars import ENVS, SECRETS, duplicate_names, parse_variables
from holdfast.domain.jobfile.node_groups import group_flaws, total_nodes
from holdfast.domain.jobfile.spec import JobFile, JobSpec, NodeRange
from holdfast.domain.jobfile.validation import output_flaws, plan_flaws, validate
from holdfast.errors import BadJobFile, ValidationIssue

_MAX_NUMBER: Final = 2**63
_AS_WRITTEN: Final = frozenset({"name", "envs", "secrets"})
_TYPED: Final = frozenset(
    {"name", "num_nodes", "workdir", "setup", "run", "envs", "secrets", "resources", "holdfast"}
)


@dataclass(frozen=True, slots=True)
class ParsedJobFile:
    """A parsed job file."""

    spec: JobSpec
    notes: tuple[str, ...]
    """Corrections that were made, as sentences for the author."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret values by name, kept only here: stored, rendered and displayed data contains names only."""
    notify: Sequence[str] = field(default=(), repr=False)
    """Notification URLs, kept only here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """Values from the command line that override the file."""

    name: str | None = None
    """Job name; None to use the file's."""
    envs: Mapping[str, str] | None = None
    """Variables that replace or extend those of the file."""
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    """Secrets that replace or extend those of the file."""
    base_dir: str | None = None
    """Base directory for relative paths; None if unknown, as for plain API requests."""
    home_dir: str | None = None
    """Directory that `~` expands to on the user's machine; None if unknown."""
    code: str | None = None
    """Uploaded code that replaces the file's workdir; None to use the workdir."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits that replace those of the file; a value of None removes a limit."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that are added to those of the file."""
    priority: int | None = None
    """Priority in the queue; None to use the file's."""
    keep_failed: str | None = None
    """How long nodes are kept after a failure; None to use the file's."""
    plan: Mapping[str, Any] | None = None
    """Values that replace those of the file's plan, likewise; None leaves a file without a plan as it is."""


def parse_job_file(text: str, overrides: Overrides = Overrides()) -> ParsedJobFile:
    """Parse a job file.

    Raises:
        BadJobFile: With all mistakes found, each with a JSON pointer and a remedy.
    """
    raw, nodes = _load(text)
    if issues := tuple(
        _unsupported_values({key: raw[key] for key in raw if key not in _AS_WRITTEN})
    ):
        raise BadJobFile(issues)
    envs, env_flaws = parse_variables(ENVS, nodes.get("envs"), overrides.envs or {})
    secrets, secret_flaws = parse_variables(SECRETS, nodes.get("secrets"), overrides.secrets or {})
    raw, notes = migrate_deprecated(raw)
    if isinstance(node := nodes.get("name"), yaml.ScalarNode) and raw["name"] is not None:
        raw["name"] = node.value
    if overrides.name is not None:
        raw["name"] = overrides.name
    if overrides.limits:
        raw = _with_values(raw, "limits", overrides.limits)
    if overrides.tags:
        raw = _with_values(raw, "tags", overrides.tags)
    if overrides.priority is not None:
        raw = _with_value(raw, "priority", overrides.priority)
    if overrides.keep_failed is not None:
        raw = _with_value(raw, "keep_failed", overrides.keep_failed)
    if overrides.plan is not None:
        raw = _with_values(raw, "plan", overrides.plan)
    file, file_flaws = validate({**raw, "envs": envs, "secrets": secrets})
    workdir, workdir_flaws = _workdir(raw.get("workdir"), overrides)
    mounts, mount_flaws = _mounts(raw.get("file_mounts"), overrides)
    issues = (
        *env_flaws,
        *secret_flaws,
        *duplicate_names(envs, secrets),
        *file_flaws,
        *(group_flaws(file) if file else ()),
        *(plan_flaws(file) if file else ()),
        *(output_flaws(file) if file else ()),
        *workdir_flaws,
        *mount_flaws,
    )
    if file is None or issues:
        raise BadJobFile(issues)
    spec = _spec(file, {**raw, "file_mounts": mounts}, workdir)
    return ParsedJobFile(spec, notes, secrets, tuple(file.holdfast.notify))


def _load(text: str) -> tuple[dict[str, Any], dict[str, yaml.Node]]:
    """Parse the document, and return the YAML nodes of its keys as written."""
    try:
        nodes = compose(text)
        # Before the construction, which expands merge keys.
        repeated = tuple(_repeated(key) for node in nodes for key in repeated_keys(node))
        documents = [construct(node, text) for node in nodes]
    except NotReadable as error:
        raise _bad_job_file(f"the job file {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) > 1 else "no mapping"
        raise _bad_job_file(f"a job file is a single mapping such as `run: ...`; found {found}")
    if repeated:
        raise BadJobFile(repeated)
    raw: dict[Any, Any] = documents[0]
    if odd := [key for key in raw if not isinstance(key, str)]:
        raise _bad_job_file(f"{odd[0]!r} is not a key of a job file; put it in quotes or remove it")
    return raw, {key.value: value for key, value in nodes[0].value}


def _repeated(key: RepeatedKey) -> ValidationIssue:
    first, again = key.lines
    where = f"in lines {first} and {again}" if first != again else f"in line {first}"
    return ValidationIssue(key.pointer, f"is written twice, {where}; remove one of them")


def _with_values(raw: dict[str, Any], key: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values over those of a block below `holdfast`.

    Unless the file's are invalid and reported as such.
    """
    block = raw.get("holdfast") or {}
    written = block.get(key) or {} if isinstance(block, dict) else None
    if not isinstance(written, dict):
        return raw
    merged = {word: value for word, value in {**written, **changes}.items() if value is not None}
    return {**raw, "holdfast": {**block, key: merged}}


def _with_value(raw: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Replace a value below `holdfast`, unless the file's block is invalid and reported as such."""
    block = raw.get("holdfast") or {}
    return {**raw, "holdfast": {**block, key: value}} if isinstance(block, dict) else raw


def _bad_job_file(message: str) -> BadJobFile:
    return BadJobFile((ValidationIssue("#", message),))


def _unsupported_values(raw: dict[str, Any]) -> Iterator[ValidationIssue]:
    """Report values that YAML can express but a task cannot contain."""
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
            case int() | float() if abs(value) < _MAX_NUMBER:
                pass
            case int() | float():
                yield ValidationIssue(pointer, "is a number out of range; write one below 2^63")
            case _:
                yield ValidationIssue(pointer, "is not plain text or a number; put it in quotes")


def _spec(file: JobFile, raw: dict[str, Any], workdir: str | None) -> JobSpec:
    run = shlex.join(file.run) if isinstance(file.run, list) else file.run
    more = {key: value for key, value in raw.items() if key not in _TYPED and value is not None}
    if isinstance(file.workdir, dict):
        more["workdir"] = (
            file.workdir
        )  # A git repository: only an engine that clones can make something of it.
    nodes = total_nodes(file)
    if isinstance(nodes, int):
        nodes = NodeRange(min=nodes, max=nodes)
    return JobSpec(
        name=file.name or "job",
        num_nodes=nodes.max,
        min_nodes=nodes.min if nodes.min < nodes.max else None,
        workdir=workdir,
        setup=file.setup,
        run=run,
        envs=file.envs,
        secrets=tuple(sorted(file.secrets)),
        resources=dict(raw.get("resources") or {}),
        more=more,
        holdfast=file.holdfast.model_copy(update={"notify": []}),
    )


def _workdir(workdir: Any, overrides: Overrides) -> tuple[str | None, tuple[ValidationIssue, ...]]:
    """The local folder, None without one or for a repository; and its mistakes."""
    if overrides.code is not None:
        if isinstance(workdir, dict):
            return None, (
                ValidationIssue(
                    "#/workdir", "is a repository, but code was uploaded; use only one of them"
                ),
            )
        return overrides.code, ()
    if not isinstance(workdir, str):
        return None, ()
    folder, problem = _resolve_path(workdir, overrides)
    return folder, (ValidationIssue("#/workdir", problem),) if problem else ()


def _mounts(mounts: Any, overrides: Overrides) -> tuple[Any, tuple[ValidationIssue, ...]]:
    """`file_mounts` with local sources made absolute, and mistakes in any path."""
    if not isinstance(mounts, dict):
        return mounts, ()
    issues: list[ValidationIssue] = []
    resolved: dict[Any, Any] = {}
    for target, mount in mounts.items():
        place = f"#/file_mounts/{target}"
        source = mount.get("source") if isinstance(mount, dict) else mount
        resolved[target] = mount
        if str(target).endswith("/") or (isinstance(source, str) and source.endswith("/")):
            issues.append(ValidationIssue(place, "a path must not end with a slash; remove it"))
        if not isinstance(source, str) or "://" in source or source.startswith("$"):
            continue  # Not a local path, or one that only SkyPilot can expand.
        here, problem = _resolve_path(source, overrides)
        if problem:
            issues.append(ValidationIssue(place, problem))
        resolved[target] = {**mount, "source": here} if isinstance(mount, dict) else here
    return resolved, tuple(issues)


def _resolve_path(path: str, overrides: Overrides) -> tuple[str, str | None]:
    """Make a path of the user's machine absolute, or return why not, with the path unchanged."""
    if path.startswith("/"):
        return path, None
    first, _, rest = path.partition("/")
    if first == "~":
        folder, lack = overrides.home_dir, "is in a home directory, but the request has no home_dir"
    elif first.startswith("~"):
        folder, lack = None, "is in the home directory of another user"
    else:
        folder, lack = overrides.base_dir, "is relative, but the request has no base_dir"
        rest = path
    if folder is None:
        return path, f"{path!r} {lack}; write an absolute path"
    return posixpath.normpath(posixpath.join(folder, rest.lstrip("/"))), None
