"""Jobs of the demonstration: ordinary ones, and scenarios for special cases.

Pure, determined by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast_worker.protocol.reports import Json

from holdfast.demo.history.market import HOUR_HAZARDS, NODE_TYPES, ZONE_HAZARDS, NodeType
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.simulated import Failure, LauncherBehavior, SimulatedProgram

DAYS: Final = 30
HOURS: Final = 24 * DAYS
POINTS: Final = 240
"""Approximate points of a curve.

A higher value slows down the generation; a lower value makes angular curves.
"""
STEPS: Final = 4_000
"""Approximate maximum steps of a job.

A higher value slows down the generation, as every step is simulated.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserAction:
    """A user's action on a job."""

    after_h: float
    """Hours after the submission of the job."""
    command: str
    """Last segment of the route, such as `cancel`; `forget` is an action of the launcher."""
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoJob:
    """One job and its scenario."""

    name: str
    owner: str
    project: str
    start_h: float
    """Hours after the start of the history."""
    node_type: NodeType
    nodes: int
    program: SimulatedProgram
    climate: MarketParameters
    behavior: LauncherBehavior = field(default_factory=LauncherBehavior)
    limits: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    uses_spot: bool = True
    actions: tuple[UserAction, ...] = ()

    @property
    def task(self) -> dict[str, Any]:
        """Return its job file."""
        every = f"{self.program.checkpoint_every_steps} steps"
        return {
            "name": self.name,
            "resources": {
                "infra": self.node_type.cloud,
                "accelerators": f"{self.node_type.accelerator}:{self.node_type.count}",
                "use_spot": self.uses_spot,
            },
            "num_nodes": self.nodes,
            "run": f"holdfast-worker run train.py --config configs/{self.name}.yaml",
            "holdfast": {
                # The worker deletes old checkpoints, as the service cannot reach such a bucket.
                "checkpoint": {
                    "store": f"s3://demo-{self.project}/{self.name}",
                    "every": every,
                    "keep": 3,
                    "tidy": "worker",
                },
                "limits": dict(self.limits),
                "tags": dict(self.tags),
            },
        }


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model that the users train."""

    name: str
    project: str
    node_type_index: int
    """Index in `KINDS`."""
    nodes: tuple[int, ...]
    hours: tuple[float, float]
    gib: float
    """Size of a checkpoint."""
    tokens_per_s: int


MODELS: Final = (
    DemoModel("llama-8b-sft", "nlp", 0, (2, 4), (18, 42), 89.0, 41_000),
    DemoModel("mistral-7b-dpo", "nlp", 0, (1, 2), (10, 26), 81.0, 23_000),
    DemoModel("bert-large", "nlp", 2, (1, 2), (6, 18), 3.8, 64_000),
    DemoModel("t5-base", "nlp", 2, (1,), (5, 14), 2.5, 52_000),
    DemoModel("gpt-moe", "nlp", 1, (1, 2), (8, 20), 132.0, 118_000),
    DemoModel("vit-large", "vision", 3, (1, 2), (9, 28), 3.5, 150_000),
    DemoModel("clip-b32", "vision", 0, (1, 2), (12, 30), 1.8, 210_000),
    DemoModel("dinov2-ft", "vision", 2, (1,), (5, 16), 1.2, 98_000),
    DemoModel("wav2vec2", "speech", 2, (1, 2), (6, 20), 3.6, 73_000),
    DemoModel("whisper-ft", "speech", 3, (1,), (8, 22), 9.3, 37_000),
)
OWNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "nlp": ("amara", "ben", "chen"),
    "vision": ("chen", "dilek"),
    "speech": ("emil", "amara"),
}
REPORTED_SHARE: Final = 0.7
"""Share of jobs whose launcher reports preemptions; those of other jobs are known only with a notice."""
TEAMS: Final[Mapping[str, str]] = {"nlp": "language", "vision": "images", "speech": "audio"}
_MTBF_H: Final = (2.6, 1.9, 4.4, 3.2)
"""Mean placement lifetime in hours for each of `KINDS`."""
_GIB: Final = 2**30
_UPLOAD_GIB_S: Final = 0.4


def rotated(hours: tuple[float, ...], first: int) -> tuple[float, ...]:
    """Rotate values by hour of the history to hours of the day, if it starts in hour `first`."""
    return tuple(hours[(hour - first) % 24] for hour in range(24))


def random_job(
    draw: random.Random, seed: int, number: int, model_number: int, begin_h: float
) -> DemoJob:
    """Draw a job with a model of `MODELS`, starting at an hour."""
    model = MODELS[model_number]
    kind, hours = NODE_TYPES[model.node_type_index], draw.uniform(*model.hours)
    step_s = max(2.0, round(hours * 3600 / STEPS, 1))
    steps = round(hours * 3600 / step_s, -2)
    nodes = draw.choice(model.nodes)
    size = model.gib * _GIB
    program = SimulatedProgram(
        total_steps=int(steps),
        step_s=step_s,
        setup_s=draw.uniform(150, 340),
        restore_s=draw.uniform(20, 40) + model.gib,
        checkpoint_every_steps=max(20, round(draw.uniform(900, 2400) / step_s)),
        stall_s=round(1 + model.gib / 40, 1),
        upload_s=round(4 + model.gib / _UPLOAD_GIB_S / nodes, 1),
        checkpoint_bytes=int(size),
        progress_every_steps=max(1, int(steps) // POINTS),
        loss_scale_steps=steps / 6,
        loss_noise=0.03,
        tokens_per_step=round(model.tokens_per_s * nodes * step_s),
        manifest=_manifest(model, kind, nodes, seed),
    )
    owner = draw.choice(OWNERS[model.project])
    return DemoJob(
        name=f"{model.name}-{number}",
        owner=owner,
        project=model.project,
        start_h=begin_h,
        node_type=kind,
        nodes=nodes,
        program=program,
        climate=_climate(seed, model),
        behavior=LauncherBehavior(reports_reclaims=draw.random() < REPORTED_SHARE),
        limits={"max_cost_usd": 100 * (2 + int(hours * nodes * kind.on_demand_micros / 1e8))},
        tags={"team": TEAMS[model.project], "model": model.name},
    )


def _climate(seed: int, model: DemoModel) -> MarketParameters:
    kind = NODE_TYPES[model.node_type_index]
    return MarketParameters(
        seed=seed,
        provision_s=160.0,
        denial_rate=0.25,
        mtbf_s=3600 * _MTBF_H[model.node_type_index],
        notice_s=120.0 if kind.cloud == "aws" else 30.0,
        no_notice_rate=0.2,
        zones=kind.zones,
        zone_hazards=tuple(ZONE_HAZARDS[zone] for zone in kind.zones),
        hour_hazards=HOUR_HAZARDS,
        spot_micros=round(kind.on_demand_micros * kind.spot_share),
        on_demand_micros=kind.on_demand_micros,
    )


def _manifest(model: DemoModel, kind: NodeType, nodes: int, seed: int) -> dict[str, Json]:
    """Build the manifest that the program of a job reports."""
    return {
        "format": 1,
        "config": {"model": model.name, "tokens_per_s": model.tokens_per_s},
        "world_size": nodes * kind.count,
        "nodes": nodes,
        "gpus_per_node": kind.count,
        "seed": seed,
        "backend": "nccl",
        "gpus": [kind.accelerator] * kind.count,
        "simulated": True,
        "lock": [],
    }


ORDINARY: Final = 24
"""Number of ordinary jobs besides `_SCENARIOS`: 42 in all."""
_UNTIL: Final = 0.94
"""Start of the last ordinary job as a share of the history, so that most jobs have ended."""

MakeJob: TypeAlias = Callable[[int, float], DemoJob]
"""Creates a job from the number of its model in `MODELS` and its hour."""


def demo_jobs(seed: int) -> list[DemoJob]:
    """Return all jobs in order of submission."""
    draw = random.Random(f"{seed}/parts")
    parts = [
        random_job(
            *(draw, seed, number + 1, draw.randrange(len(MODELS))),
            begin_h=_UNTIL * HOURS * (number + draw.random()) / ORDINARY,
        )
        for number in range(ORDINARY)
    ]
    for number, story in enumerate(_SCENARIOS, start=ORDINARY + 1):
        parts.append(story(draw, partial(random_job, draw, seed, number)))
    return sorted(parts, key=lambda part: part.start_h)


def _missing_file(draw: random.Random, make: MakeJob) -> DemoJob:
    """Fail at once through a mistake in the program."""
    part = make(2, draw.uniform(300, 400))
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train-00000.parquet'"
    return _failing(part, Failure(0, 1, 1, words))


def _out_of_memory(draw: random.Random, make: MakeJob) -> DemoJob:
    """Crash three times in a row; the crash loop guard prevents a fourth attempt."""
    part = make(0, draw.uniform(420, 560))
    step = part.program.checkpoint_every_steps - 7
    return _failing(
        part,
        Failure(
            step, 1, 9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.40 GiB"
        ),
    )


def _one_bad_batch(draw: random.Random, make: MakeJob) -> DemoJob:
    """Fail once, resume from the checkpoint and succeed."""
    part = make(7, draw.uniform(100, 500))
    step = 2 * part.program.checkpoint_every_steps + 11
    return _failing(
        part, Failure(step, 1, 1, "ValueError: expected 3 channels, got 1 (sample 48213)")
    )


def _no_progress(draw: random.Random, make: MakeJob) -> DemoJob:
    """Lose all nodes before the first checkpoint, until the guard stops the job."""
    part = make(4, draw.uniform(560, 640))
    program = replace(part.program, checkpoint_every_steps=part.program.total_steps, setup_s=600)
    climate = replace(
        part.climate, mtbf_s=1100, no_notice_rate=1.0, zone_hazards=(), hour_hazards=()
    )
    limits = {**part.limits, "max_fruitless": 4}
    return replace(part, program=program, climate=climate, limits=limits)


def _cancelled(draw: random.Random, make: MakeJob) -> DemoJob:
    part = make(5, draw.uniform(150, 600))
    deed = UserAction(
        after_h=4.2, command="cancel", body={"reason": "the learning rate was ten times too high"}
    )
    return replace(part, actions=(deed,))


def _cancelled_waiting(draw: random.Random, make: MakeJob) -> DemoJob:
    part = _without_capacity(make(4, draw.uniform(200, 500)))
    deed = UserAction(after_h=7.5, command="cancel", body={"reason": "submitted again on demand"})
    return replace(part, actions=(deed,))


def _over_budget(draw: random.Random, make: MakeJob) -> DemoJob:
    """Stay paused at the cost limit."""
    part = make(0, HOURS - draw.uniform(40, 60))
    hourly = part.nodes * part.node_type.on_demand_micros / 1e6 * part.node_type.spot_share
    return replace(part, limits={"max_cost_usd": round(9 * hourly)})


def _paused_and_resumed(draw: random.Random, make: MakeJob) -> DemoJob:
    part = make(6, draw.uniform(100, 520))
    deeds = (
        UserAction(
            after_h=3.0, command="pause", body={"reason": "the loss looks odd; looking at the data"}
        ),
        UserAction(after_h=9.5, command="resume"),
    )
    return replace(part, actions=deeds)


def _raised(draw: random.Random, make: MakeJob) -> DemoJob:
    """Reach the cost limit, which is raised, and resume."""
    part = make(1, draw.uniform(200, 540))
    hourly = part.nodes * part.node_type.on_demand_micros / 1e6 * part.node_type.spot_share
    body = {"limits": part.limits, "reason": "worth it: the first evaluation looks good"}
    deeds = (UserAction(after_h=20.0, command="resume", body=body),)
    return replace(part, limits={"max_cost_usd": round(4 * hourly)}, actions=deeds)


def _silent_market(draw: random.Random, make: MakeJob) -> DemoJob:
    """Lose nodes without causes; only losses with a notice are known to be preemptions."""
    part = make(3, draw.uniform(60, 500))
    climate = replace(part.climate, mtbf_s=4000, no_notice_rate=0.6)
    return replace(part, climate=climate, behavior=LauncherBehavior(reports_reclaims=False))


def _lost_by_launcher(draw: random.Random, make: MakeJob) -> DemoJob:
    """Be lost by the launcher; a new launch resumes from the checkpoint."""
    return replace(
        make(8, draw.uniform(100, 500)), actions=(UserAction(after_h=2.5, command="forget"),)
    )


def _on_demand(draw: random.Random, make: MakeJob) -> DemoJob:
    return replace(make(9, draw.uniform(300, 600)), uses_spot=False)


def _training_now(draw: random.Random, make: MakeJob) -> DemoJob:
    return _fast(make(0, HOURS - draw.uniform(14, 20)), step_s=3.0, hours=60)


def _started_recently(draw: random.Random, make: MakeJob) -> DemoJob:
    return _fast(make(6, HOURS - draw.uniform(1.2, 1.8)), step_s=2.0, hours=24)


def _often_preempted(draw: random.Random, make: MakeJob) -> DemoJob:
    """Lose nodes every few minutes, for live displays."""
    part = _fast(make(3, HOURS - draw.uniform(2.2, 2.6)), step_s=1.0, hours=30)
    program = replace(part.program, setup_s=25, restore_s=8, checkpoint_every_steps=90, upload_s=6)
    climate = replace(
        part.climate, provision_s=40, mtbf_s=540, notice_s=30, zone_hazards=(), hour_hazards=()
    )
    return replace(part, program=program, climate=climate)


def _waiting_now(draw: random.Random, make: MakeJob) -> DemoJob:
    return _without_capacity(make(4, HOURS - draw.uniform(2.0, 3.4)))


def _with_quota(draw: random.Random, make: MakeJob) -> DemoJob:
    """Hold the only job that the quota of its user allows."""
    return _of_emil(_fast(make(9, HOURS - draw.uniform(7, 8)), step_s=4.0, hours=26))


def _behind_quota(draw: random.Random, make: MakeJob) -> DemoJob:
    """Wait in the queue for the job before it."""
    return _of_emil(make(8, HOURS - draw.uniform(3.0, 4.0)))


def _of_emil(part: DemoJob) -> DemoJob:
    return replace(part, owner="emil")


_SCENARIOS: Final = (
    *(_missing_file, _out_of_memory, _one_bad_batch, _no_progress, _cancelled, _cancelled_waiting),
    *(_over_budget, _paused_and_resumed, _raised, _silent_market, _lost_by_launcher, _on_demand),
    *(_training_now, _started_recently, _often_preempted, _waiting_now),
    *(_with_quota, _behind_quota),
)


def _failing(part: DemoJob, failure: Failure) -> DemoJob:
    return replace(part, program=replace(part.program, failure=failure))


def _without_capacity(part: DemoJob) -> DemoJob:
    climate = replace(part.climate, provision_s=420.0, denial_rate=0.999)
    return replace(part, climate=climate)


def _fast(part: DemoJob, *, step_s: float, hours: float) -> DemoJob:
    """Make a job that is still running and reports every few seconds."""
    steps = int(hours * 3600 / step_s)
    program = replace(
        part.program,
        total_steps=steps,
        step_s=step_s,
        checkpoint_every_steps=int(1200 / step_s),
        progress_every_steps=max(1, int(15 / step_s)),
        loss_scale_steps=steps / 6,
        tokens_per_step=round(part.program.tokens_per_step / part.program.step_s * step_s),
    )
    return replace(part, program=program)
