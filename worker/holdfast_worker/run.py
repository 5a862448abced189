"""`Run`: saves a training loop, reports its progress, and exits before a preemption."""

from __future__ import annotations

import atexit
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast_worker import rng
from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.import_weights import UnreadableWeights, begin_from
from holdfast_worker.checkpoint.metadata import IncompatibleCheckpoint, PartialLoadError
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult
from holdfast_worker.checkpoint.state_consistency import InconsistentState, check_consistency
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.checkpoint.writer import WriterIdentity
from holdfast_worker.config import STANDALONE_JOB, Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.data.batch_trace import trace_batches
from holdfast_worker.data.resumable_loader import LoaderChanged, Position, ResumableLoader, reshard
from holdfast_worker.distributed import flight_recorder, sharding
from holdfast_worker.distributed.ddp_warmup import warm_up_ddp
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.recovery_plan import Place
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.checkpoint_keys import NONCE_DIGITS
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json
from holdfast_worker.recovery.run_recovery import RunRecovery
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.shutdown import Shutdown
from holdfast_worker.startup import (
    claim_epoch,
    open_parent_job,
    open_reports,
    open_repository,
    open_snapshot_memory,
    reopen_repository,
)
from holdfast_worker.step_boundary import StepBoundary
from holdfast_worker.storage.base import StoreError
from holdfast_worker.storage.retry import collective_timeout_s
from holdfast_worker.telemetry.batch_size import TokenCount, check_token_count
from holdfast_worker.telemetry.manifest import Manifest
from holdfast_worker.telemetry.metrics import MetricLogger, Scalar
from holdfast_worker.telemetry.progress import ProgressLog
from holdfast_worker.telemetry.reporter import Reporter, TrainingOrigin
from holdfast_worker.telemetry.runtime_metrics import TOKENS, RuntimeMetrics
from holdfast_worker.telemetry.trackers import Tracker, TrackerRun
from holdfast_worker.watchdog.failure_cause import FINAL_SAVE_S
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

B = TypeVar("B")


class Run:
    """One rank of a run: call `start`, iterate over `steps`; all other methods are optional."""

    def __init__(
        self,
        config: Config,
        ranks: ProcessGroup,
        reports: Reporter,
        run_dir: RunDir | None,
        heartbeat: HeartbeatWriter,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._reports = reports
        self._run_dir = run_dir
        self._heartbeat = heartbeat
        self._shutdown = Shutdown(ranks, run_dir, reports, is_attended=config.wrapper is not None)
        self._runtime_metrics = RuntimeMetrics(heartbeat, ranks.device, ranks.world_size)
        self._metrics = MetricLogger(reports, self._runtime_metrics.read_if_due)
        self._step_boundary = StepBoundary(ranks, reports, self._shutdown, self._metrics, heartbeat)
        self._manifest = Manifest(config)
        self._repository: CheckpointRepository | None = None
        self._nonce = ""
        self._epoch = 0
        self._checkpointer: Checkpointer | None = None
        self._tracker: TrackerRun | None = None
        self._position: Position | None = None
        self._origin = TrainingOrigin()
        self._sharded: list[nn.Module] = []
        self._unsynchronized: list[nn.Module] = []
        self._is_tracking = False
        self._is_stepping = False
        self._recovery: RunRecovery | None = None
        self._joined_at: Place | None = None
        """Where this rank joined others; None: it started with them."""
        self.step = 0
        """Number of completed optimizer steps, over all attempts."""

    @classmethod
    def start(cls, *, deterministic: bool = False) -> Self:
        """Start a run from the environment: set the process group, the device and the seeds.

        `deterministic` selects algorithms that return the same bits in each run.

        Raises:
            SystemExit: the environment is invalid, or the checkpoint store is unusable.
        """
        try:
            config = Config.read(environment())
        except ValueError as error:
            log_info(str(error))
            raise SystemExit(Exit.USAGE) from error
        run_dir = RunDir(config.run_dir) if config.run_dir else None
        NOTICE.handle_sigterm(run_dir)
        NOTICE.install_handlers()
        beat = HeartbeatWriter.create(run_dir if config.wrapper else None, config.rank)
        if run_dir and beat.is_published:
            flight_recorder.install_dump_handler(run_dir, config.rank)
        timeout = collective_timeout_s(config.max_stall) if beat.is_published else None
        ranks = ProcessGroup.join(
            config.identity,
            heartbeat=beat,
            timeout=timeout,
            is_recoverable=config.node_ranks is not None and run_dir is not None,
            joins=config.joins,
        )
        rng.seed_rank(config, deterministic=deterministic)
        run = cls(config, ranks, open_reports(config), run_dir, beat)
        run._recovery = RunRecovery.open(
            config, ranks, run_dir, run._reports, heartbeat=beat, timeout=timeout
        )
        run._initialize()
        beat.enter(Phase.PREPARING)
        return run

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._ranks.device

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._ranks.world_size

    def wrap(
        self, model: nn.Module, *, gradients_agree: bool = True, shard: bool = False
    ) -> nn.Module:
        """Move the model to this rank's device and wrap it in DDP, or shard it with FSDP2.

        The run stops if its gradients differ between ranks. `gradients_agree=False` turns this check off, for a script
        in which they differ on purpose, such as one that averages the weights from time to time.
        """
        if self._is_tracking:
            raise RuntimeError(
                "call wrap() before track(): track() loads the checkpoint into the wrapped model"
            )
        model = model.to(self.device)
        self._runtime_metrics.model_flops.watch(model)
        if not gradients_agree:
            self._unsynchronized.append(model)
        if self.world_size == 1:
            return model
        if shard:
            self._sharded.append(sharding.shard(model))
            return model
        wrapped = DistributedDataParallel(
            model,
            device_ids=self._ranks.connect_gpu(),
            process_group=self._ranks.recoverable,
            # A rank that joins others receives their weights in track().
            init_sync=not self._config.joins,
        )
        self._runtime_metrics.watch(wrapped)
        if gradients_agree:
            self._step_boundary.desync_detector.watch(wrapped)
        return wrapped

    def begin_from(self, path: str | Path, **objects: object) -> None:
        """Load initial weights from a file of `torch.save` or safetensors, before `track`.

        The file has a state under each name, or is the state of the model alone. No code in the file is executed.
        A checkpoint that `track` restores takes precedence.

        Raises:
            SystemExit: the file is unreadable in this way, or has no matching state.
        """
        if self._checkpointer:
            raise RuntimeError("call begin_from() before track(): track() restores the progress")
        try:
            begin_from(Path(path), TrackedState(objects))
        except (UnreadableWeights, StateMismatch) as error:
            self._shutdown.abort(Exit.USAGE, self.step, str(error))

    def track(self, *, per_rank: Collection[str] | bool = False, **objects: object) -> None:
        """Save these objects in checkpoints, and restore them from the newest complete checkpoint.

        Each object has `state_dict` and `load_state_dict`. Track the model as `model`: its digest is reported. A checkpoint holds
        one state for all ranks. Objects that `per_rank` names (all objects if it is True) have one state for each rank.

        Raises:
            SystemExit: the newest checkpoint has different objects, or a state cannot be saved or differs between ranks.
        """
        if self._checkpointer:
            raise RuntimeError("call track() once, with all objects to save")
        if self._is_stepping:
            raise RuntimeError("call track() before steps(): steps() starts at the restored step")
        self._is_tracking = True
        self._manifest.tracked = tracked = TrackedState(objects, per_rank, self._unsynchronized)
        if problem := sharding.optimizer_problem(objects, self._sharded):
            self._shutdown.abort(Exit.USAGE, self.step, problem)
        self._runtime_metrics.watch_tracked(objects.get("model"))
        warm_up_ddp(objects.values(), self._ranks)
        if self._recovery:
            self._recovery.track(tracked, objects.values())
        if self._repository:
            self._checkpointer = self._open_checkpointer(self._repository, tracked)
        if self._recovery and self._config.joins:
            self._join(self._recovery)
        elif self._checkpointer:
            self._restore(self._checkpointer, tracked)
        self._heartbeat.enter(Phase.PREPARING)

    def steps(
        self,
        loader: Iterable[B],
        *,
        total: int | None = None,
        continues: bool = False,
        tokens: TokenCount[B] | None = None,
    ) -> Iterator[B]:
        """Yield batches from the restored position until `total` steps, over several passes.

        Each batch is one optimizer step. Between two steps the run saves, reports, and exits on a termination notice.
        Without `total`, batches continue until the script breaks out of the loop; then call `finish`.
        `continues`: the data is iterable, and each pass begins where the last one ended. A resume reads all passes again.
        `tokens` of a batch of this rank, or a function that counts them, if its shape does not show them.

        Raises:
            ValueError: the loader cannot continue, or `tokens` is no number of tokens.
            SystemExit: the node is about to be preempted and the work is saved, or a newer attempt replaced this one.
        """
        if self._is_stepping:
            raise RuntimeError(
                "call steps() once: it makes as many passes over the data as it needs"
            )
        check_token_count(tokens)
        self._is_stepping = True
        feed = ResumableLoader(
            loader,
            self._position,
            self._heartbeat.mark_alive,
            continues=continues,
            logs=self.rank == 0,
        )
        batches = trace_batches(feed, self._config, self.step, self._metrics.readings)
        total = self._config.limit_steps(total)
        self._manifest.add_loader(loader)
        self._start_steps(feed, total)
        if self.rank == 0:
            saved_step = self._checkpointer.durable_step if self._checkpointer else None
            self._metrics.progress = ProgressLog(self.step, total, saved_step)
        if total is not None and self.step >= total:
            feed.skip_all()
        try:
            while total is None or self.step < total:
                if self._joined_at is not Place.STEP:
                    self._step_boundary.run(self.step)
                self._joined_at = None
                self._heartbeat.enter(Phase.LOADING)
                try:
                    batch = next(batches)
                except LoaderChanged as error:
                    self._shutdown.abort(Exit.USAGE, self.step, str(error))
                self._heartbeat.enter(Phase.STEPPING)
                self._runtime_metrics.count_batch(batch, tokens)
                yield batch
                self._end_step()
        finally:
            self._heartbeat.enter(Phase.FINISHED)
        self.finish()

    def describe(self, **config: object) -> None:
        """Add values on which the results depend to the manifest; before `steps`, no secrets."""
        self._manifest.add_config(config)

    def manifest(self) -> dict[str, Json]:
        """The manifest of the run: code, packages, seeds, machines, and the values from `describe`."""
        return self._manifest.collect(self.device)

    def log(self, **scalars: Scalar) -> None:
        """Log metrics of this step; a tensor of one value is read only when a point is due."""
        self._metrics.log(scalars)
        if TOKENS in scalars:
            self._runtime_metrics.count_tokens(scalars[TOKENS])

    def log_to(self, tracker: Tracker) -> None:
        """Also send metrics from `log` to a tracker, as one series over all attempts.

        Call it before `steps`. Only rank 0 opens the tracker.
        """
        if self._tracker:
            raise RuntimeError("call log_to() once")
        self._tracker = TrackerRun(tracker, self._run_dir, has_service=bool(self._config.url))
        self._shutdown.on_exit(self._metrics.close_tracker, is_local=True)

    def beat(self) -> None:
        """Write a heartbeat during long work between steps, such as an evaluation.

        Without heartbeats, the watchdog ends a run that makes no step within the stall limit.
        """
        self._heartbeat.mark_alive()

    def finish(self) -> None:
        """Save the last step and report that training has finished; `steps` calls it at `total`.

        Raises:
            SystemExit: the last step could not be saved; another attempt computes it again.
        """
        if self._shutdown.is_exit_recorded:
            return
        self._metrics.report(self.step)
        if self._checkpointer and not self._save_last_step(self._checkpointer):
            problem = self._checkpointer.fatal_error or self._checkpointer.failure_reason()
            message = f"the last step, {self.step}, could not be saved: {problem}"
            self._shutdown.abort(self._checkpointer.exit_code, self.step, message)
        self._shutdown.record_exit(ExitReason("finished", Exit.DONE, self.step))
        self._heartbeat.enter(Phase.FINISHED)
        NOTICE.remove_handlers()

    def _initialize(self) -> None:
        """Finish the start with the operations that need the other ranks."""
        atexit.register(self._close)
        self._shutdown.install_excepthook(lambda: self.step, self._wait_for_save)
        if self._config.joins:
            self._repository = reopen_repository(self._config)
            return  # The others have probed the store, and tell nonce and epoch.
        self._nonce = self._ranks.broadcast(secrets.token_hex(NONCE_DIGITS // 2))
        try:
            self._repository = open_repository(self._config, self._ranks, self._nonce)
            if self._repository:
                self._epoch = claim_epoch(self._config, self._repository, self._ranks, self._nonce)
        except FencedOut as fenced:
            self._shutdown.abort(Exit.FENCED, self.step, str(fenced))
        except StoreError as error:
            self._shutdown.abort(
                Exit.UNUSABLE_STORE,
                self.step,
                f"the checkpoint store {self._config.store} cannot be used: {error}",
            )
        self._reports.restore_started(self._repository.probed if self._repository else None)

    def _resume_position(self, restored: RestoreResult) -> Position:
        """The data position of this rank, from the positions of the ranks that saved."""
        owns = restored.owns
        if restored.world_size == self.world_size:
            return Position(**owns[self.rank])
        return reshard([owns[rank] for rank in sorted(owns)], self.rank, self.world_size)

    def _open_checkpointer(
        self, repository: CheckpointRepository, tracked: TrackedState
    ) -> Checkpointer:
        config = self._config
        checkpointer = Checkpointer(
            repository,
            tracked,
            self._ranks,
            config.cadence,
            config.on_save_failure,
            waits=config.sync_saves,
            heartbeat=self._heartbeat,
        )
        self._step_boundary.checkpointer = checkpointer
        self._shutdown.on_exit(checkpointer.close)
        return checkpointer

    def _restore(self, checkpointer: Checkpointer, tracked: TrackedState) -> None:
        """Restore the newest complete checkpoint.

        Raises:
            SystemExit: it has different objects, or a state cannot be saved or differs between ranks.
        """
        config = self._config
        placement = WriterIdentity(self.rank, self.world_size, self._epoch, self._nonce)
        self._heartbeat.enter(Phase.RESTORING)
        is_needed = self._recovery is None or not self._recovery.can_replace_ranks
        checkpointer.memory = open_snapshot_memory(config, self._ranks, is_needed=is_needed)
        try:
            check_consistency(tracked, self._ranks)
            parent_job = open_parent_job(config, self._ranks, checkpointer.meter)
            restored = checkpointer.restore(
                placement, self._reports, config.keep_checkpoints, parent_job
            )
        except (UnserializableState, InconsistentState, StateMismatch) as error:
            self._shutdown.abort(Exit.USAGE, self.step, str(error))
        except PartialLoadError as error:
            self._shutdown.abort(Exit.FAILED, self.step, str(error))
        except IncompatibleCheckpoint as error:
            self._shutdown.abort(Exit.UNUSABLE_STORE, self.step, str(error))
        except StoreError as error:
            self._shutdown.abort(Exit.FAILED, self.step, f"the checkpoints cannot be read: {error}")
        self._origin = restored.training_origin
        if restored.name:
            self.step = restored.name.step
            self._position = self._resume_position(restored)
            self._heartbeat.start_at(self.step)

    def _join(self, recovery: RunRecovery) -> None:
        """Join the other ranks in place of a lost one, with the state of a survivor.

        Raises:
            NotRecoverable: the ranks have to start again from a checkpoint.
        """
        joined = recovery.join()
        self._nonce, self._epoch = joined.nonce, joined.epoch
        if self._checkpointer and joined.saves:
            identity = WriterIdentity(self.rank, self.world_size, self._epoch, self._nonce)
            self._checkpointer.join(
                identity, self._reports, self._config.keep_checkpoints, joined.saves
            )
        self.step, self._joined_at, self._position = joined.step, joined.place, joined.position
        self._heartbeat.start_at(self.step)

    def _start_steps(self, feed: ResumableLoader[Any], total: int | None) -> None:
        """Report the start, and start the tracker and the checkpoint timer."""
        self._step_boundary.loader = feed
        if self._recovery:
            run = self._nonce, self._epoch
            where = (lambda: self.step), (lambda: feed.known_position)
            self._step_boundary.recovery = self._recovery.start(run, *where, self._checkpointer)
        if not self._joined_at:
            self._report_start(total)
        self._open_tracker()
        if self._checkpointer:
            self._checkpointer.start_timer()
        self._runtime_metrics.begin()

    def _report_start(self, total: int | None) -> None:
        if self.rank == 0:
            if not self._checkpointer:
                missing = "call of track()" if self._config.store else "HOLDFAST_STORE"
                log_info(f"no {missing}: this run makes no checkpoints")
            self._reports.run_described(self.manifest())
        keeps_state = self._run_dir is not None and self._run_dir.keeps_state()
        start = self.step, total, self.world_size, self._origin
        self._reports.training_started(*start, keeps_state=keeps_state)

    def _open_tracker(self) -> None:
        """Open the tracker on rank 0; all ranks exit if that fails."""
        if not self._tracker:
            return
        problem = ""
        if self.rank == 0:
            job = None if self._config.job == STANDALONE_JOB else self._config.job
            try:
                self._tracker.open(job, self.step)
                self._metrics.tracker = self._tracker
            except ImportError as error:
                problem = str(error)
        # It was opened before if this rank replaces another, and the others are within a step.
        problem = problem if self._joined_at else self._ranks.first_message(problem)
        if problem:
            self._shutdown.abort(Exit.USAGE, self.step, problem)

    def _end_step(self) -> None:
        self.step += 1
        if self._checkpointer:
            self._checkpointer.end_step()
        self._step_boundary.desync_detector.end_step()
        if self._run_dir:
            self._run_dir.mark_trained()
        self._runtime_metrics.count_step()
        self._metrics.end_step(self.step)
        # Last: reading logged tensors waits for the GPU, and a hung step shows there.
        self._heartbeat.complete_step(self.step)

    def _save_last_step(self, _checkpointer: Checkpointer) -> bool:
        """Save the last step; True if it is durable."""
        return self._step_boundary.finish(self.step)

    def _wait_for_save(self) -> None:
        if self._checkpointer:
            self._checkpointer.wait(FINAL_SAVE_S)

    def _close(self) -> None:
        """Wait for the save in progress and leave the process group, at the end of the process."""
        if not self._shutdown.is_failed:
            self._wait_for_save()
            if self._recovery:
                self._recovery.close()
            self._ranks.destroy()
