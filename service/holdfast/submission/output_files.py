"""The output files of a job, as its checkpoint store holds them.

A job's own program can write to that store: nothing that is read from it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from holdfast_worker.protocol.output_files import (
    MAX_COMMIT_BYTES,
    OUTPUT_COMMITS,
    OUTPUT_PART_BYTES,
    OutputCollection,
    OutputFile,
    parse_output_epoch,
)

from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.errors import (
    CheckpointStoreRefused,
    CheckpointStoreUnreachable,
    NotFound,
    NotPossibleNow,
    Unavailable,
)
from holdfast.ports import CheckpointBucket
from holdfast.services import Services


@dataclass(frozen=True, slots=True)
class JobOutputs:
    """Reads the output files of one job."""

    job_id: str
    bucket: CheckpointBucket

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
            return cls(job.id, services.open_bucket(checkpoint.store, job.id, spec.envs))

    def newest(self) -> OutputCollection | None:
        """The complete collection of the newest attempt; None if no attempt has left one.

        Raises:
            NotPossibleNow: the store refuses to be read, or the newest list is damaged.
        """
        with _as_sentence(self.job_id):
            listed = self.bucket.list_objects(OUTPUT_COMMITS).objects
            commits = {
                epoch: stored
                for stored in listed
                if (epoch := parse_output_epoch(stored.key)) is not None
            }
            if not commits:
                return None
            epoch = max(commits)
            if commits[epoch].size_bytes > MAX_COMMIT_BYTES:
                raise self._damaged("is too large")
            data = self.bucket.read(commits[epoch].key)
        try:
            return OutputCollection.parse(data or b"", epoch)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def find(self, number: int, epoch: int | None) -> tuple[OutputCollection, OutputFile]:
        """A file of the newest collection by its number; `epoch` is that of the caller's list.

        Raises:
            NotFound: there is no such file, or a newer attempt has replaced the caller's list.
        """
        collection = self.newest()
        found = [file for file in collection.files if file.number == number] if collection else []
        if collection is None or not found:
            raise NotFound(f"job {self.job_id} has no output file number {number}; list them again")
        if epoch is not None and epoch != collection.epoch:
            raise NotFound(
                f"a newer attempt of job {self.job_id} has replaced its output files; list them again"
            )
        return collection, found[0]

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
