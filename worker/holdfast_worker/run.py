"""A run: a training loop that is saved, reported, and leaves when its node is taken."""

from __future__ import annotations

import atexit
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from holdfast_worker import rng
from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.import_weights import UnreadableWeights, begin_from
from holdfast_worker.checkpoint.metadata import Foreign, PartialLoadError
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.checkpoint.writer import WriterIdentity
from holdfast_worker.config import BARE, Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.data.batch_trace import trace_batches
from holdfast_worker.data.resumable_loader import LoaderChanged, Position, ResumableLoader, reshard
from holdfast_worker.distributed import flight_recorder, sharding
from holdfast_worker.distributed.ddp_warmup import warm_up_ddp
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.state_consistency import Unlike, agree
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.checkpoint_keys import DRAWN_DIGITS
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.shutdown import Shutdown
from holdfast_worker.startup import claim_epoch, open_archive, open_forebear, open_reports
from holdfast_worker.step_boundary import StepBoundary
from holdfast_worker.storage.base import StoreError
from holdfast_worker.storage.retry import collective_timeout_s
from holdfast_worker.telemetry.manifest import Manifest
from holdfast_worker.telemetry.metrics import MetricLogger, Scalar
from holdfast_worker.telemetry.reporter import PassedOver, Reporter
from holdfast_worker.telemetry.runtime_metrics import RuntimeMetrics
from holdfast_worker.telemetry.trackers import Tracker, TrackerRun
from holdfast_worker.watchdog.failure_cause import LAST_SAVE_S
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

B = TypeVar("B")


class Run:
    """One rank of a run. Begin with `start`, put `steps` around the loop; the rest is optional."""

    def __init__(
        self,
        config: Config,
        ranks: ProcessGroup,
        reports: Reporter,
        run_dir: RunDir | None,
        beat: HeartbeatWriter,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._reports = reports
        self._run_dir = run_dir
        self._beat = beat
        self._departure = Shutdown(ranks, run_dir, reports, is_attended=config.wrapper is not None)
        self._vitals = RuntimeMetrics(beat, ranks.device)
        self._meter = MetricLogger(reports, self._vitals.due)
        self._interlude = StepBoundary(ranks, reports, self._departure, self._meter, beat)
        self._manifest = Manifest(config)
        self._archive: CheckpointRepository | None = None
        self._nonce = ""
        self._epoch = 0
        self._keeper: Checkpointer | None = None
        self._curve: TrackerRun | None = None
        self._position: Position | None = None
        self._restored_from: str | None = None
        self._passed_over: list[PassedOver] = []
        self._sharded: list[nn.Module] = []
        self._apart: list[nn.Module] = []
        self._is_tracking = False
        self._is_stepping = False
        self.step = 0
        """Optimizer steps that are done, over all attempts."""

    @classmethod
    def start(cls, *, deterministic: bool = False) -> Self:
        """A run as the environment describes it: process group, device and seeds are set; the same bits each time if asked.

        Raises:
            SystemExit: the environment is wrong, or the checkpoint store cannot be used.
        """
        try:
            config = Config.read(environment())
        except ValueError as error:
            log_info(str(error))
            raise SystemExit(Exit.USAGE) from error
        run_dir = RunDir(config.run_dir) if config.run_dir else None
        NOTICE.listen(run_dir)
        NOTICE.install_handlers()
        beat = HeartbeatWriter.begin(run_dir if config.wrapper else None, config.rank)
        if run_dir and beat.is_seen:
            flight_recorder.install_dump_handler(run_dir, config.rank)
        ranks = ProcessGroup.join(
            config.identity,
            beat=beat,
            patience=collective_timeout_s(config.max_stall) if beat.is_seen else None,
        )
        rng.seed_rank(config, deterministic=deterministic)
        run = cls(config, ranks, open_reports(config), run_dir, beat)
        run._begin()
        beat.enter(Phase.PREPARING)
        return run

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._ranks.device

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._ranks.world_size

    def wrap(
        self, model: nn.Module, *, gradients_agree: bool = True, shard: bool = False
    ) -> nn.Module:
        """The model on this rank's device, kept the same on all ranks by DDP; with `shard`, spread over them by FSDP2.

        If its gradients turn out not to be the same on all of them, the run stops; `gradients_agree=False` is for a script
        that means them to differ, as when it averages the weights now and then instead.
        """
        if self._is_tracking:
            raise RuntimeError(
                "wrap() comes before track(), which loads into the model as it is then"
            )
        model = model.to(self.device)
        if not gradients_agree:
            self._apart.append(model)
        if self.world_size == 1:
            return model
        if shard:
            self._sharded.append(sharding.shard(model))
            return model
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=device_ids)
        self._vitals.watch(wrapped)
        if gradients_agree:
            self._interlude.gradients.watch(wrapped)
        return wrapped

    def begin_from(self, path: str | Path, **objects: object) -> None:
        """Put these where a file of `torch.save` or safetensors has them; before `track`, whose checkpoints count more.

        The file has a state under each name, or is one of the model alone. It is read without running what may be in it.

        Raises:
            SystemExit: it cannot be read so, or has nothing that fits.
        """
        if self._keeper:
            raise RuntimeError("begin_from() comes before track(), which knows how far the run is")
        try:
            begin_from(Path(path), TrackedState(objects))
        except (UnreadableWeights, StateMismatch) as error:
            self._departure.abort(Exit.USAGE, self.step, str(error))

    def track(self, *, per_rank: Collection[str] | bool = False, **objects: object) -> None:
        """Keep these in checkpoints, and put them where the newest complete checkpoint left them.

        Anything with `state_dict` and `load_state_dict`. Track the model as `model`: its digest is reported. A checkpoint holds one
        state for all ranks, but for those objects that `per_rank` names, or all if it is True: of these, each rank has its own.

        Raises:
            SystemExit: the newest checkpoint is of other objects; one of these cannot be kept; or it differs between ranks.
        """
        if self._keeper:
            raise RuntimeError("track() is called once, with everything that is to be kept")
        if self._is_stepping:
            raise RuntimeError("track() comes before steps(), which begins where it has loaded")
        self._is_tracking = True
        tracked = TrackedState(objects, per_rank, self._apart)
        self._look_for_early_optimizers(objects)
        warm_up_ddp(objects.values(), self._ranks)
        if not self._archive:
            return
        config = self._config
        self._keeper = Checkpointer(
            self._archive,
            tracked,
            self._ranks,
            config.cadence,
            config.on_save_failure,
            waits=config.saves_wait,
            beat=self._beat,
        )
        self._interlude.keeper = self._keeper
        self._departure.on_exit(self._keeper.close)
        placement = WriterIdentity(self.rank, self.world_size, self._epoch, self._nonce)
        self._beat.enter(Phase.RESTORING)
        try:
            agree(tracked, self._ranks)
            forebear = open_forebear(config, self._ranks)
            restored = self._keeper.restore(placement, self._reports, config.keep, forebear)
        except (UnserializableState, Unlike, StateMismatch) as error:
            self._departure.abort(Exit.USAGE, self.step, str(error))
        except PartialLoadError as error:
            self._departure.abort(Exit.FAILED, self.step, str(error))
        except Foreign as error:
            self._departure.abort(Exit.UNUSABLE_STORE, self.step, str(error))
        except StoreError as error:
            self._departure.abort(
                Exit.FAILED, self.step, f"the checkpoints cannot be read: {error}"
            )
        self._passed_over = restored.passed_over
        if restored.name:
            self.step = restored.name.step
            self._restored_from = restored.checkpoint
            self._position = self._go_on(restored)
            self._beat.begin_at(self.step)
        self._beat.enter(Phase.PREPARING)

    def steps(
        self, loader: Iterable[B], *, total: int | None = None, continues: bool = False
    ) -> Iterator[B]:
        """Batches until `total` steps are done, from where the checkpoint was taken, over as many passes as needed.

        Every batch is one optimizer step. Between two of them the run saves, reports, and leaves on notice.
        Without `total` there are batches until the script breaks out of the loop; then call `finish`.
        `continues`: the data is iterable, and each pass begins where the last one ended. A resume reads all passes again.

        Raises:
            ValueError: the loader cannot continue.
            SystemExit: the node will be taken, and the work is saved; or a newer placement of the job took over.
        """
        if self._is_stepping:
            raise RuntimeError(
                "steps() is called once; it makes as many passes over the data as it takes"
            )
        self._is_stepping = True
        feed = ResumableLoader(
            loader, self._position, self._beat.live, continues=continues, tells=self.rank == 0
        )
        batches = trace_batches(feed, self._config, self.step, self._meter.readings)
        total = self._config.at_most(total)
        self._manifest.see(loader)
        self._begin_steps(feed, total)
        if total is not None and self.step >= total:
            feed.skip_all()
        try:
            while total is None or self.step < total:
                self._interlude.run(self.step)
                self._beat.enter(Phase.LOADING)
                try:
                    batch = next(batches)
                except LoaderChanged as error:
                    self._departure.abort(Exit.USAGE, self.step, str(error))
                self._beat.enter(Phase.STEPPING)
                yield batch
                self._end_step()
        finally:
            self._beat.enter(Phase.OVER)
        self.finish()

    def describe(self, **config: object) -> None:
        """Put these into the manifest of the run: whatever its numbers depend on. Before `steps`; no secrets."""
        self._manifest.add(config)

    def manifest(self) -> dict[str, Json]:
        """What the run comes from: code, packages, seeds, machines, and what `describe` was given."""
        return self._manifest.told(self.device)

    def log(self, **scalars: Scalar) -> None:
        """Show these numbers beside the step; a tensor of one value is read only when a point is due."""
        self._meter.log(scalars)

    def log_to(self, tracker: Tracker) -> None:
        """Show there, too, what `log` shows: one curve over all attempts. Before `steps`; only the first rank speaks to it."""
        if self._curve:
            raise RuntimeError("log_to() is called once")
        self._curve = TrackerRun(tracker)
        self._departure.on_exit(lambda _left: self._meter.end_curve())

    def beat(self) -> None:
        """Say that this rank is alive, in the middle of something that takes long: an evaluation, say.

        Without it, a watchdog ends a run that makes no step for too long.
        """
        self._beat.live()

    def finish(self) -> None:
        """Save the last step and say that training is over. `steps` does it at `total`.

        Raises:
            SystemExit: the last step could not be saved; another attempt will make it again.
        """
        if self._departure.is_over:
            return
        self._meter.report(self.step)
        if self._keeper and not self._save_the_last(self._keeper):
            why = self._keeper.fatal_error or self._keeper.failure_reason()
            words = f"the last step, {self.step}, could not be saved: {why}"
            self._departure.abort(self._keeper.exit_code, self.step, words)
        self._departure.leave(ExitReason("finished", Exit.DONE, self.step))
        self._beat.enter(Phase.OVER)
        NOTICE.remove_handlers()

    def _begin(self) -> None:
        """The second half of the start: what needs the other ranks."""
        atexit.register(self._close)
        self._departure.watch_for_errors(lambda: self.step, self._wait_for_save)
        self._nonce = self._ranks.broadcast(secrets.token_hex(DRAWN_DIGITS // 2))
        try:
            self._archive = open_archive(self._config, self._ranks, self._nonce)
            if self._archive:
                self._epoch = claim_epoch(self._config, self._archive, self._ranks, self._nonce)
        except FencedOut as fenced:
            self._departure.abort(Exit.FENCED, self.step, str(fenced))
        except StoreError as error:
            self._departure.abort(
                Exit.UNUSABLE_STORE,
                self.step,
                f"the checkpoint store {self._config.store} cannot be used: {error}",
            )
        self._reports.restore_started(self._archive.guarantee if self._archive else None)

    def _go_on(self, restored: RestoreResult) -> Position:
        """Where this rank is in the data, after the ranks that saved."""
        owns = restored.owns
        if restored.world_size == self.world_size:
            return Position(**owns[self.rank])
        return reshard([owns[rank] for rank in sorted(owns)], self.rank, self.world_size)

    def _begin_steps(self, feed: ResumableLoader[Any], total: int | None) -> None:
        """What there is to say and to do before the first step."""
        self._interlude.feed = feed
        self._say_what_is_kept()
        if self.rank == 0:
            self._reports.run_described(self.manifest())
        self._reports.training_started(
            self.step, total, self.world_size, self._restored_from, self._passed_over
        )
        self._begin_curve()
        if self._keeper:
            self._keeper.start_the_clock()

    def _look_for_early_optimizers(self, objects: Mapping[str, object]) -> None:
        """Refuse an optimizer of parameters that sharding has replaced: it would change nothing, and nobody would see it."""
        for name, item in objects.items():
            if isinstance(item, Optimizer) and any(
                sharding.is_made_too_early(item, model) for model in self._sharded
            ):
                self._departure.abort(
                    Exit.USAGE,
                    self.step,
                    f"{name} was made before the model was sharded: call wrap(model, shard=True) first, then make it",
                )

    def _begin_curve(self) -> None:
        """Let the tracker know that training begins; no rank begins it if the first one cannot."""
        if not self._curve:
            return
        why = ""
        if self.rank == 0:
            job = None if self._config.job == BARE else self._config.job
            try:
                self._curve.begin(job, self.step)
                self._meter.curve = self._curve
            except ImportError as error:
                why = str(error)
        why = self._ranks.first_message(why)
        if why:
            self._departure.abort(Exit.USAGE, self.step, why)

    def _end_step(self) -> None:
        self.step += 1
        if self._keeper:
            self._keeper.end_step()
        self._interlude.gradients.end_step()
        if self._run_dir:
            self._run_dir.mark_trained()
        self._meter.tick(self.step)
        # Last: reading what was logged waits for the GPU, and may be where a step hangs.
        self._beat.step(self.step)

    def _save_the_last(self, _keeper: Checkpointer) -> bool:
        """Whether the state of the last step is durable now."""
        return self._interlude.save_the_last(self.step)

    def _say_what_is_kept(self) -> None:
        if self.rank == 0 and not self._config.store:
            log_info("no HOLDFAST_STORE: this run makes no checkpoints")
        elif self.rank == 0 and not self._keeper:
            log_info("nothing is tracked: this run makes no checkpoints")

    def _wait_for_save(self) -> None:
        if self._keeper:
            self._keeper.wait(LAST_SAVE_S)

    def _close(self) -> None:
        """At the end of the process, however it came."""
        if not self._departure.is_failed:
            self._wait_for_save()
            self._ranks.leave()
