"""What a job of the demonstration is made of: who submits what, when, and in which weather it trains. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_worker.wire import Json

from holdfast.adapters.simulated import Habits, SimulatedProgram
from holdfast.domain.weather import Climate
from holdfast.showcase.market import DAY, KINDS, ZONE_HAZARDS, Kind

DAYS: Final = 30
HOURS: Final = 24 * DAYS
POINTS: Final = 240
"""Points of a curve, about. More: a history that takes longer to make; fewer: curves with corners."""
STEPS: Final = 4_000
"""Steps of a job, at most about. More: a history that takes longer to make, as each is played through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deed:
    """What somebody does about a job."""

    after_h: float
    """Hours after its submission."""
    what: str
    """The last part of the route, such as `cancel`; `forget` is the launcher's own."""
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One job, and all that happens to it."""

    name: str
    owner: str
    project: str
    begin_h: float
    """Hours after the beginning of the history."""
    kind: Kind
    nodes: int
    program: SimulatedProgram
    climate: Climate
    habits: Habits = field(default_factory=Habits)
    limits: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    uses_spot: bool = True
    deeds: tuple[Deed, ...] = ()

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
class Model:
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
    Model("llama-8b-sft", "nlp", 0, (2, 4), (18, 42), 89.0, 41_000),
    Model("mistral-7b-dpo", "nlp", 0, (1, 2), (10, 26), 81.0, 23_000),
    Model("bert-large", "nlp", 2, (1, 2), (6, 18), 3.8, 64_000),
    Model("t5-base", "nlp", 2, (1,), (5, 14), 2.5, 52_000),
    Model("gpt-moe", "nlp", 1, (1, 2), (8, 20), 132.0, 118_000),
    Model("vit-large", "vision", 3, (1, 2), (9, 28), 3.5, 150_000),
    Model("clip-b32", "vision", 0, (1, 2), (12, 30), 1.8, 210_000),
    Model("dinov2-ft", "vision", 2, (1,), (5, 16), 1.2, 98_000),
    Model("wav2vec2", "speech", 2, (1, 2), (6, 20), 3.6, 73_000),
    Model("whisper-ft", "speech", 3, (1,), (8, 22), 9.3, 37_000),
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


def part_of(draw: random.Random, seed: int, number: int, model_number: int, begin_h: float) -> Part:
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
    return Part(
        name=f"{model.name}-{number}",
        owner=owner,
        project=model.project,
        begin_h=begin_h,
        kind=kind,
        nodes=nodes,
        program=program,
        climate=_climate(seed, model),
        habits=Habits(tells_reclaims=draw.random() < TELLS),
        limits={"max_cost_usd": 100 * (2 + int(hours * nodes * kind.on_demand_micros / 1e8))},
        tags={"team": TEAMS[model.project], "model": model.name},
    )


def _climate(seed: int, model: Model) -> Climate:
    kind = KINDS[model.kind]
    return Climate(
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


def _manifest(model: Model, kind: Kind, nodes: int, seed: int) -> dict[str, Json]:
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
