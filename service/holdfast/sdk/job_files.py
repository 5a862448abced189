"""Job files on this machine: read them, and upload the code that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdfast.addresses import is_here
from holdfast.api.schemas.jobs import CheckoutIn, TaskIn
from holdfast.client import Client
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.errors import BadJobFile, BadRequest, ValidationIssue
from holdfast.reproduce.git import read_checkout


def read_task(
    file: Path | str,
    *,
    base: Path | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> TaskIn:
    """Read a job file for a submission.

    Its relative paths count from `base`, or from the current directory.

    Raises:
        BadRequest: the file cannot be read.
        BadJobFile: the file is not YAML.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}; give the path of a job file") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not UTF-8 text; a job file is YAML") from error
    check_yaml(str(file), text)
    try:
        return local_task(text, base, name=name, env=env, secrets=secrets)
    except ValidationError as error:
        flaw = error.errors(include_input=False)[0]
        place = ".".join(map(str, flaw["loc"]))
        raise BadRequest(f"{place}: {flaw['msg']}") from error


def local_task(text: str, base: Path | None = None, **changes: Any) -> TaskIn:
    """Describe a job file with the places on this machine to which it refers.

    Raises:
        ValidationError: a value, or the path of the current directory, is not UTF-8.
    """
    given = {word: value for word, value in changes.items() if value is not None}
    places = {"base_dir": str(base or Path.cwd()), "home_dir": str(Path.home())}
    return TaskIn(task=text, checkout=checkout_of(text, base), **places, **given)


def upload_code(client: Client, task: TaskIn, *, upload: bool | None = None) -> None:
    """Upload the `workdir` of a job file and refer to it in the task.

    `upload`: None uploads unless the service runs on this machine. `code_of` has the errors.
    """
    base = Path(task.base_dir) if task.base_dir else None
    task.code = code_of(
        client, task.task, upload, lambda folder: _upload(client, folder), base=base
    )


def workdir_of(text: str, base: Path | None = None) -> Path | None:
    """The local working directory that a job file names, or None.

    Relative ones count from `base`, or from the current directory. The service validates the file.
    """
    try:
        workdir = _task(text).get("workdir")
        folder = base or Path.cwd()
        return folder / Path(workdir).expanduser() if isinstance(workdir, str) else None
    except RuntimeError:
        return None


def checkout_of(text: str, base: Path | None = None) -> CheckoutIn | None:
    """Describe the Git checkout of the working directory, or None outside of one.

    The service validates the file.
    """
    folder = workdir_of(text, base)
    found = read_checkout(folder) if folder else None
    return CheckoutIn(**asdict(found)) if found else None


def code_of(
    client: Client,
    text: str,
    upload: bool | None,
    send: Callable[[Path], str],
    *,
    base: Path | None = None,
) -> str | None:
    """Upload the working directory of a job file with `send`, and return its id.

    None if the service uses its own directory.

    Raises:
        BadJobFile: `file_mounts` names files of this machine, which are not uploaded.
        BadRequest: the directory does not exist or cannot be uploaded.
    """
    sends = upload is True or (upload is None and not is_here(client.url))
    if sends and (flaws := tuple(_mount_issues(_task(text).get("file_mounts")))):
        raise BadJobFile(flaws)
    folder = workdir_of(text, base)
    if folder is None or upload is False:
        return None
    if not folder.is_dir():
        raise BadRequest(
            f"workdir: the directory {folder} does not exist on this machine; correct the path, or use --no-upload for a directory of the service's machine"
        )
    return send(folder) if sends else None


def check_yaml(name: str, text: str) -> None:
    """Check the syntax of a job file; the service validates its content.

    Raises:
        BadJobFile: the file is not YAML; the message shows the affected lines.
    """
    try:
        load(text)
    except NotReadable as error:
        lines = text.splitlines()
        shown = (f"\n    {n:>3} | {lines[n - 1]}" for n in error.lines if n <= len(lines))
        raise BadJobFile((ValidationIssue(name, f"{error}{''.join(shown)}"),)) from error


def _task(text: str) -> dict[str, Any]:
    """Parse a job file leniently; the service validates it."""
    try:
        task = load(text)
    except ValueError:
        return {}
    return task if isinstance(task, dict) else {}


def _mount_issues(mounts: Any) -> Iterator[ValidationIssue]:
    """List sources on this machine.

    An absolute path that does not exist here belongs to the service's machine.
    """
    for target, mount in mounts.items() if isinstance(mounts, dict) else ():
        source = mount.get("source") if isinstance(mount, dict) else mount
        for path in source if isinstance(source, list) else [source]:
            if not isinstance(path, str) or "://" in path or path.startswith("$"):
                continue
            if not path.startswith("/") or Path(path).exists():
                yield ValidationIssue(
                    f"#/file_mounts/{target}",
                    f"{path!r} is a path of this machine, and only workdir is uploaded; put the files under workdir, name a "
                    "bucket, or use --no-upload if all paths are on the service's machine",
                )


def _upload(client: Client, folder: Path) -> str:
    from holdfast.client.code_uploads import CodeClient  # noqa: PLC0415 - programs that send nothing start faster

    return CodeClient(client, lambda *_: None, lambda _: None).upload(folder)
