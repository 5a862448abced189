"""The output files of a job, as its checkpoint store holds them.

A job's own program can write to that store: nothing that is read from it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

from holdfast_worker.protocol.output_files import (
    MAX_COMMIT_BYTES,
    MAX_LEFT_OUT,
    MAX_OTHERS_FILES,
    MAX_OUTPUT_FILES,
    NUMBERS_PER_NODE,
    OUTPUT_COMMITS,
    OUTPUT_PART_BYTES,
    CommitName,
    LeftOutFile,
    OutputCollection,
    OutputFile,
    is_safe_path,
    node_path,
    parse_commit_key,
)

from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.errors import (
    CheckpointStoreRefused,
    CheckpointStoreUnreachable,
    NotFound,
    NotPossibleNow,
    Unavailable,
)
from holdfast.ports import CheckpointBucket, StoredObject
from holdfast.services import Services

MAX_LIST_BYTES: Final = 64 << 20
"""Bytes of the lists of all nodes that are read. A lower value leaves out nodes of large jobs; a higher value lets a job fill the memory."""
LANES: Final = 8
"""Lists that are read at once. A lower value takes longer with many nodes; a higher value needs more memory."""
MAX_FILES: Final = MAX_OUTPUT_FILES + MAX_OTHERS_FILES


@dataclass(frozen=True, slots=True)
class NodeOutputFile:
    """An output file of a node, as users see it."""

    node: int
    number: int
    """Its number among the files of all nodes."""
    path: str
    """Its path among the files of all nodes."""
    file: OutputFile


@dataclass(frozen=True, slots=True)
class NodeLeftOut:
    """A file of a node that was not collected."""

    node: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptOutputs:
    """The output files that the nodes of an attempt have left."""

    first: OutputCollection
    """That of node 0; of the next node, if that one has left none."""
    files: Sequence[NodeOutputFile]
    left_out: Sequence[NodeLeftOut]
    """At most MAX_LEFT_OUT of them."""
    left_out_count: int

    @classmethod
    def of_nodes(cls, found: Sequence[OutputCollection], damaged: Mapping[int, str]) -> Self:
        """Combine what each node has left.

        `damaged`: nodes whose lists cannot be used, and why.
        """
        files = list[NodeOutputFile]()
        left_out = [NodeLeftOut(node, f"node-{node}", why) for node, why in damaged.items()]
        count = len(damaged)
        for each in found:
            # A directory of node 0 may have the same name.
            suffix = _free_suffix(each.node, found[0])
            left = [*each.left_out]
            for file in each.files:
                path = node_path(each.node, file.path, suffix)
                if not is_safe_path(path):
                    left.append(LeftOutFile(file.path, "has too long a path"))
                elif len(files) >= MAX_FILES:
                    left.append(LeftOutFile(file.path, f"would be more than {MAX_FILES} files"))
                else:
                    number = each.node * NUMBERS_PER_NODE + file.number
                    files.append(NodeOutputFile(each.node, number, path, file))
            count += each.left_out_count + len(left) - len(each.left_out)
            left_out += [
                NodeLeftOut(each.node, node_path(each.node, one.path, suffix), one.reason)
                for one in left
            ]
        return cls(found[0], tuple(files), tuple(left_out[:MAX_LEFT_OUT]), count)


def _free_suffix(node: int, first: OutputCollection) -> str:
    """What distinguishes the directory of a node from those of node 0, whatever their case."""
    taken = {file.path.partition("/")[0].casefold() for file in first.files if not first.node}
    suffix = ""
    while f"node-{node}{suffix}" in taken:
        suffix += "_"
    return suffix


@dataclass(frozen=True, slots=True)
class JobOutputs:
    """Reads the output files of one job."""

    job_id: str
    bucket: CheckpointBucket
    has_ended: bool
    """Whether no further attempt follows."""

    @classmethod
    def open(cls, services: Services, job: Job) -> Self | None:
        """Open the store of a job; None if it keeps no output files.

        Raises:
            NotPossibleNow: the service cannot read the store.
        """
        spec = JobSpec.from_stored(services.journal.submission(job.id).spec)
        checkpoint = spec.holdfast.checkpoint
        if not spec.holdfast.outputs or checkpoint is None or services.open_bucket is None:
            return None
        if why := spec.store_refusal:
            raise NotPossibleNow(
                f"the service cannot read the output files of job {job.id}: {why}; "
                f"read them from {checkpoint.store.rstrip('/')}/{job.id}"
            )
        with _as_sentence(job.id):
            bucket = services.open_bucket(checkpoint.store, job.id, spec.envs)
        return cls(job.id, bucket, job.state is State.ENDED)

    def newest(self) -> AttemptOutputs | None:
        """The files of the newest attempt; None if no attempt has left any.

        Raises:
            NotPossibleNow: the store refuses to be read, or the list of the first node is damaged.
        """
        commits = self._newest_commits()
        if not commits:
            return None
        first, *others = sorted(commits)
        found, damaged = [self._read_list(first, commits[first])], dict[int, str]()
        total, read = 0, list[CommitName]()
        for name in others:
            total += commits[name].size_bytes
            if total > MAX_LIST_BYTES:
                damaged[name.node] = "has a list too long to be read"
            else:
                read.append(name)

        def collection(name: CommitName) -> OutputCollection | str:
            try:
                return self._read_list(name, commits[name])
            except NotPossibleNow as error:
                return f"has a list that cannot be used: {error.detail}"

        if read:
            with ThreadPoolExecutor(min(LANES, len(read)), "outputs") as lanes:
                for name, each in zip(read, lanes.map(collection, read), strict=True):
                    if isinstance(each, str):
                        damaged[name.node] = each
                    else:
                        found.append(each)
        return AttemptOutputs.of_nodes(found, damaged)

    def find(self, number: int, epoch: int | None) -> tuple[OutputCollection, OutputFile]:
        """A file of the newest attempt by its number; `epoch` is that of the caller's list.

        Raises:
            NotFound: there is no such file, or a newer attempt has replaced the caller's list.
        """
        node, own = divmod(number, NUMBERS_PER_NODE)
        for name, stored in self._newest_commits().items():
            if epoch is not None and epoch != name.epoch:
                raise NotFound(
                    f"a newer attempt of job {self.job_id} has replaced its output files; list them again"
                )
            if name.node == node:
                collection = self._read_list(name, stored)
                for file in collection.files:
                    if file.number == own:
                        return collection, file
        raise NotFound(f"job {self.job_id} has no output file number {number}; list them again")

    def _newest_commits(self) -> dict[CommitName, StoredObject]:
        """The lists of all nodes of the newest attempt.

        The files of an attempt replace others once node 0 has sent its own, so that a download is not cut off by the first of several nodes.
        After the last attempt, they do so without it: its node was lost.
        """
        with _as_sentence(self.job_id):
            listed = self.bucket.list_objects(OUTPUT_COMMITS).objects
        commits = {name: stored for stored in listed if (name := parse_commit_key(stored.key))}
        of_first = [name.epoch for name in commits if not name.node]
        epochs = [name.epoch for name in commits] if self.has_ended or not of_first else of_first
        newest = max(epochs, default=0)
        return {name: stored for name, stored in commits.items() if name.epoch == newest}

    def _read_list(self, name: CommitName, stored: StoredObject) -> OutputCollection:
        if stored.size_bytes > MAX_COMMIT_BYTES:
            raise self._damaged("is too large")
        with _as_sentence(self.job_id):
            data = self.bucket.read(stored.key)
        try:
            return OutputCollection.parse(data or b"", *name)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def parts(
        self, collection: OutputCollection, file: OutputFile, only: int | None = None
    ) -> Iterator[bytes]:
        """The content of a file in parts of at most 16 MiB, or one of them.

        Its parts are checked before the first is read, so that none fills the memory.

        Raises:
            NotFound: a part is missing or of another size.
        """
        wanted = file.parts if only is None else [only]
        if only is not None and only not in file.parts:
            raise NotFound(f"output file {file.path} has {len(file.parts)} parts, from number 0")
        with _as_sentence(self.job_id):
            listed = self.bucket.list_objects(collection.file_prefix(file)).objects
        sizes = {stored.key: stored.size_bytes for stored in listed}
        for part in wanted:
            size = min(OUTPUT_PART_BYTES, file.size_bytes - part * OUTPUT_PART_BYTES)
            if sizes.get(collection.part_key(file, part)) != size:
                raise self._missing(file)
        return self._read(collection, file, wanted)

    def _read(
        self, collection: OutputCollection, file: OutputFile, wanted: range | list[int]
    ) -> Iterator[bytes]:
        for part in wanted:
            with _as_sentence(self.job_id):
                data = self.bucket.read(collection.part_key(file, part))
            if data is None:
                raise self._missing(file)
            yield data

    def _damaged(self, why: str) -> NotPossibleNow:
        return NotPossibleNow(
            f"the list of the output files of job {self.job_id} cannot be used: {why}; "
            "the next attempt that ends by itself writes it again"
        )

    def _missing(self, file: OutputFile) -> NotFound:
        return NotFound(
            f"output file {file.path} of job {self.job_id} is not complete in the store: "
            "a newer attempt has replaced it, or it was deleted there; list the files again"
        )


@contextmanager
def _as_sentence(job_id: str) -> Iterator[None]:
    """Say which files a failing store has."""
    try:
        yield
    except CheckpointStoreRefused as error:
        raise NotPossibleNow(
            f"the service cannot read the output files of job {job_id}: {error.detail}"
        ) from error
    except CheckpointStoreUnreachable as error:
        raise Unavailable(
            f"the store of job {job_id} did not respond; try again later: {error.detail}"
        ) from error
