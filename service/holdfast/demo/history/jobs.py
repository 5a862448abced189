"""What a job of the demonstration is made of: who submits what, when, and in which weather it trains. Pure.

The jobs of the demonstration: many that are like others, and some that show what else may happen. Pure, and told by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast_worker.protocol.reports import Json

from holdfast.demo.history.market import DAY, KINDS, ZONE_HAZARDS, MarketType
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.simulated import Failure, LauncherBehavior, SimulatedProgram

DAYS: Final = 30
HOURS: Final = 24 * DAYS
POINTS: Final = 240
"""Points of a curve, about. More: a history that takes longer to make; fewer: curves with corners."""
STEPS: Final = 4_000
"""Steps of a job, at most about. More: a history that takes longer to make, as each is played through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserAction:
    """What somebody does about a job."""

    after_h: float
    """Hours after its submission."""
    what: str
    """The last part of the route, such as `cancel`; `forget` is the launcher's own."""
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoJob:
    """One job, and all that happens to it."""

    name: str
    owner: str
    project: str
    begin_h: float
    """Hours after the beginning of the history."""
    kind: MarketType
    nodes: int
    program: SimulatedProgram
    climate: MarketParameters
    habits: LauncherBehavior = field(default_factory=LauncherBehavior)
    limits: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    uses_spot: bool = True
    deeds: tuple[UserAction, ...] = ()

    @property
    def task(self) -> dict[str, Any]:
        """Its job file."""
        every = f"{self.program.checkpoint_every_steps} steps"
        return {
            "name": self.name,
            "resources": {
                "infra": self.kind.cloud,
                "accelerators": f"{self.kind.accelerator}:{self.kind.count}",
                "use_spot": self.uses_spot,
            },
            "num_nodes": self.nodes,
            "run": f"holdfast-worker run train.py --config configs/{self.name}.yaml",
            "holdfast": {
                # Its worker tidies, as the service has no such bucket to reach.
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
    """What people train."""

    name: str
    project: str
    kind: int
    """Which of `KINDS`."""
    nodes: tuple[int, ...]
    hours: tuple[float, float]
    gib: float
    """Of a checkpoint."""
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
TELLS: Final = 0.7
"""Share of jobs whose launcher tells that nodes were taken; of the others, that is known only where there was a notice."""
TEAMS: Final[Mapping[str, str]] = {"nlp": "language", "vision": "images", "speech": "audio"}
_MTBF_H: Final = (2.6, 1.9, 4.4, 3.2)
"""Hours that placements of each of `KINDS` last on average."""
_GIB: Final = 2**30
_UPLOAD_GIB_S: Final = 0.4


def rotated(hours: tuple[float, ...], first: int) -> tuple[float, ...]:
    """Figures of the hours since a beginning as those of the hours of a day, where it began in its hour `first`."""
    return tuple(hours[(hour - first) % 24] for hour in range(24))


def part_of(
    draw: random.Random, seed: int, number: int, model_number: int, begin_h: float
) -> DemoJob:
    """A part as `draw` makes it, with a model of `MODELS`, that begins at an hour."""
    model = MODELS[model_number]
    kind, hours = KINDS[model.kind], draw.uniform(*model.hours)
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
        begin_h=begin_h,
        kind=kind,
        nodes=nodes,
        program=program,
        climate=_climate(seed, model),
        habits=LauncherBehavior(tells_reclaims=draw.random() < TELLS),
        limits={"max_cost_usd": 100 * (2 + int(hours * nodes * kind.on_demand_micros / 1e8))},
        tags={"team": TEAMS[model.project], "model": model.name},
    )


def _climate(seed: int, model: DemoModel) -> MarketParameters:
    kind = KINDS[model.kind]
    return MarketParameters(
        seed=seed,
        provision_s=160.0,
        denial_rate=0.25,
        mtbf_s=3600 * _MTBF_H[model.kind],
        notice_s=120.0 if kind.cloud == "aws" else 30.0,
        no_notice_rate=0.2,
        zones=kind.zones,
        zone_hazards=tuple(ZONE_HAZARDS[zone] for zone in kind.zones),
        hour_hazards=DAY,
        spot_micros=round(kind.on_demand_micros * kind.spot_share),
        on_demand_micros=kind.on_demand_micros,
    )


def _manifest(model: DemoModel, kind: MarketType, nodes: int, seed: int) -> dict[str, Json]:
    """What the program of a part says that it comes from."""
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
"""Jobs without a story of their own, beside those of `_STORIES`: 40 in all."""
_UNTIL: Final = 0.94
"""When the last of them begins, as a share of the history, so that most are over at its end."""

Make: TypeAlias = Callable[[int, float], DemoJob]
"""A part with a model, by its number in `MODELS`, that begins at an hour."""


def demo_jobs(seed: int) -> list[DemoJob]:
    """All parts, in the order in which they are submitted."""
    draw = random.Random(f"{seed}/parts")
    parts = [
        part_of(
            *(draw, seed, number + 1, draw.randrange(len(MODELS))),
            begin_h=_UNTIL * HOURS * (number + draw.random()) / ORDINARY,
        )
        for number in range(ORDINARY)
    ]
    for number, story in enumerate(_STORIES, start=ORDINARY + 1):
        parts.append(story(draw, partial(part_of, draw, seed, number)))
    return sorted(parts, key=lambda part: part.begin_h)


def _missing_file(draw: random.Random, make: Make) -> DemoJob:
    """It fails at once: the program's own mistake."""
    part = make(2, draw.uniform(300, 400))
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train-00000.parquet'"
    return _failing(part, Failure(0, 1, 1, words))


def _out_of_memory(draw: random.Random, make: Make) -> DemoJob:
    """The same crash three times in a row: it is stopped instead of paying for a fourth."""
    part = make(0, draw.uniform(420, 560))
    step = part.program.checkpoint_every_steps - 7
    return _failing(
        part,
        Failure(
            step, 1, 9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.40 GiB"
        ),
    )


def _one_bad_batch(draw: random.Random, make: Make) -> DemoJob:
    """Fails once, begins again from its checkpoint, and ends well."""
    part = make(7, draw.uniform(100, 500))
    step = 2 * part.program.checkpoint_every_steps + 11
    return _failing(
        part, Failure(step, 1, 1, "ValueError: expected 3 channels, got 1 (sample 48213)")
    )


def _no_progress(draw: random.Random, make: Make) -> DemoJob:
    """Its nodes go before it has saved anything, again and again, until its guard says that this is no use."""
    part = make(4, draw.uniform(560, 640))
    program = replace(part.program, checkpoint_every_steps=part.program.total_steps, setup_s=600)
    climate = replace(
        part.climate, mtbf_s=1100, no_notice_rate=1.0, zone_hazards=(), hour_hazards=()
    )
    limits = {**part.limits, "max_fruitless": 4}
    return replace(part, program=program, climate=climate, limits=limits)


def _cancelled(draw: random.Random, make: Make) -> DemoJob:
    part = make(5, draw.uniform(150, 600))
    deed = UserAction(
        after_h=4.2, what="cancel", body={"reason": "the learning rate was ten times too high"}
    )
    return replace(part, deeds=(deed,))


def _cancelled_waiting(draw: random.Random, make: Make) -> DemoJob:
    part = _without_room(make(4, draw.uniform(200, 500)))
    deed = UserAction(after_h=7.5, what="cancel", body={"reason": "submitted again on demand"})
    return replace(part, deeds=(deed,))


def _too_dear(draw: random.Random, make: Make) -> DemoJob:
    """Paused by the limit of its own cost, and nobody has raised that yet."""
    part = make(0, HOURS - draw.uniform(40, 60))
    hourly = part.nodes * part.kind.on_demand_micros / 1e6 * part.kind.spot_share
    return replace(part, limits={"max_cost_usd": round(9 * hourly)})


def _paused_and_resumed(draw: random.Random, make: Make) -> DemoJob:
    part = make(6, draw.uniform(100, 520))
    deeds = (
        UserAction(
            after_h=3.0, what="pause", body={"reason": "the loss looks odd; looking at the data"}
        ),
        UserAction(after_h=9.5, what="resume"),
    )
    return replace(part, deeds=deeds)


def _raised(draw: random.Random, make: Make) -> DemoJob:
    """Reaches its limit, which is raised, and goes on."""
    part = make(1, draw.uniform(200, 540))
    hourly = part.nodes * part.kind.on_demand_micros / 1e6 * part.kind.spot_share
    body = {"limits": part.limits, "reason": "worth it: the first evaluation looks good"}
    deeds = (UserAction(after_h=20.0, what="resume", body=body),)
    return replace(part, limits={"max_cost_usd": round(4 * hourly)}, deeds=deeds)


def _silent_market(draw: random.Random, make: Make) -> DemoJob:
    """Of its losses nobody tells why: only those with a notice are known to be preemptions."""
    part = make(3, draw.uniform(60, 500))
    climate = replace(part.climate, mtbf_s=4000, no_notice_rate=0.6)
    return replace(part, climate=climate, habits=LauncherBehavior(tells_reclaims=False))


def _forgotten(draw: random.Random, make: Make) -> DemoJob:
    """Its launcher dies and forgets it; it is launched anew, and goes on from its checkpoint."""
    return replace(make(8, draw.uniform(100, 500)), deeds=(UserAction(after_h=2.5, what="forget"),))


def _on_demand(draw: random.Random, make: Make) -> DemoJob:
    return replace(make(9, draw.uniform(300, 600)), uses_spot=False)


def _training_now(draw: random.Random, make: Make) -> DemoJob:
    return _lively(make(0, HOURS - draw.uniform(14, 20)), step_s=3.0, hours=60)


def _young(draw: random.Random, make: Make) -> DemoJob:
    return _lively(make(6, HOURS - draw.uniform(1.2, 1.8)), step_s=2.0, hours=24)


def _stormy(draw: random.Random, make: Make) -> DemoJob:
    """Loses its nodes every few minutes, so that there is something to see."""
    part = _lively(make(3, HOURS - draw.uniform(2.2, 2.6)), step_s=1.0, hours=30)
    program = replace(part.program, setup_s=25, restore_s=8, checkpoint_every_steps=90, upload_s=6)
    climate = replace(
        part.climate, provision_s=40, mtbf_s=540, notice_s=30, zone_hazards=(), hour_hazards=()
    )
    return replace(part, program=program, climate=climate)


def _waiting_now(draw: random.Random, make: Make) -> DemoJob:
    return _without_room(make(4, HOURS - draw.uniform(2.0, 3.4)))


_STORIES: Final = (
    *(_missing_file, _out_of_memory, _one_bad_batch, _no_progress, _cancelled, _cancelled_waiting),
    *(_too_dear, _paused_and_resumed, _raised, _silent_market, _forgotten, _on_demand),
    *(_training_now, _young, _stormy, _waiting_now),
)


def _failing(part: DemoJob, failure: Failure) -> DemoJob:
    return replace(part, program=replace(part.program, failure=failure))


def _without_room(part: DemoJob) -> DemoJob:
    climate = replace(part.climate, provision_s=420.0, denial_rate=0.999)
    return replace(part, climate=climate)


def _lively(part: DemoJob, *, step_s: float, hours: float) -> DemoJob:
    """A part that is not over yet, and of which one hears every few seconds."""
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
