"""The jobs of the demonstration: many that are like others, and some that show what else may happen. Pure, and told by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from holdfast.adapters.simulated import Failure, Habits
from holdfast.showcase.parts import HOURS, MODELS, Deed, Part, part_of

ORDINARY: Final = 24
"""Jobs without a story of their own, beside those of `_STORIES`: 40 in all."""
_UNTIL: Final = 0.94
"""When the last of them begins, as a share of the history, so that most are over at its end."""

Make: TypeAlias = Callable[[int, float], Part]
"""A part with a model, by its number in `MODELS`, that begins at an hour."""


def company(seed: int) -> list[Part]:
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


def _missing_file(draw: random.Random, make: Make) -> Part:
    """It fails at once: the program's own mistake."""
    part = make(2, draw.uniform(300, 400))
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train-00000.parquet'"
    return _failing(part, Failure(0, 1, 1, words))


def _out_of_memory(draw: random.Random, make: Make) -> Part:
    """The same crash three times in a row: it is stopped instead of paying for a fourth."""
    part = make(0, draw.uniform(420, 560))
    step = part.program.checkpoint_every_steps - 7
    return _failing(
        part,
        Failure(
            step, 1, 9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.40 GiB"
        ),
    )


def _one_bad_batch(draw: random.Random, make: Make) -> Part:
    """Fails once, begins again from its checkpoint, and ends well."""
    part = make(7, draw.uniform(100, 500))
    step = 2 * part.program.checkpoint_every_steps + 11
    return _failing(
        part, Failure(step, 1, 1, "ValueError: expected 3 channels, got 1 (sample 48213)")
    )


def _no_progress(draw: random.Random, make: Make) -> Part:
    """Its nodes go before it has saved anything, again and again, until its guard says that this is no use."""
    part = make(4, draw.uniform(560, 640))
    program = replace(part.program, checkpoint_every_steps=part.program.total_steps, setup_s=600)
    climate = replace(
        part.climate, mtbf_s=1100, no_notice_rate=1.0, zone_hazards=(), hour_hazards=()
    )
    limits = {**part.limits, "max_fruitless": 4}
    return replace(part, program=program, climate=climate, limits=limits)


def _cancelled(draw: random.Random, make: Make) -> Part:
    part = make(5, draw.uniform(150, 600))
    deed = Deed(
        after_h=4.2, what="cancel", body={"reason": "the learning rate was ten times too high"}
    )
    return replace(part, deeds=(deed,))


def _cancelled_waiting(draw: random.Random, make: Make) -> Part:
    part = _without_room(make(4, draw.uniform(200, 500)))
    deed = Deed(after_h=7.5, what="cancel", body={"reason": "submitted again on demand"})
    return replace(part, deeds=(deed,))


def _too_dear(draw: random.Random, make: Make) -> Part:
    """Paused by the limit of its own cost, and nobody has raised that yet."""
    part = make(0, HOURS - draw.uniform(40, 60))
    hourly = part.nodes * part.kind.on_demand_micros / 1e6 * part.kind.spot_share
    return replace(part, limits={"max_cost_usd": round(9 * hourly)})


def _paused_and_resumed(draw: random.Random, make: Make) -> Part:
    part = make(6, draw.uniform(100, 520))
    deeds = (
        Deed(after_h=3.0, what="pause", body={"reason": "the loss looks odd; looking at the data"}),
        Deed(after_h=9.5, what="resume"),
    )
    return replace(part, deeds=deeds)


def _raised(draw: random.Random, make: Make) -> Part:
    """Reaches its limit, which is raised, and goes on."""
    part = make(1, draw.uniform(200, 540))
    hourly = part.nodes * part.kind.on_demand_micros / 1e6 * part.kind.spot_share
    body = {"limits": part.limits, "reason": "worth it: the first evaluation looks good"}
    deeds = (Deed(after_h=20.0, what="resume", body=body),)
    return replace(part, limits={"max_cost_usd": round(4 * hourly)}, deeds=deeds)


def _silent_market(draw: random.Random, make: Make) -> Part:
    """Of its losses nobody tells why: only those with a notice are known to be preemptions."""
    part = make(3, draw.uniform(60, 500))
    climate = replace(part.climate, mtbf_s=4000, no_notice_rate=0.6)
    return replace(part, climate=climate, habits=Habits(tells_reclaims=False))


def _forgotten(draw: random.Random, make: Make) -> Part:
    """Its launcher dies and forgets it; it is launched anew, and goes on from its checkpoint."""
    return replace(make(8, draw.uniform(100, 500)), deeds=(Deed(after_h=2.5, what="forget"),))


def _on_demand(draw: random.Random, make: Make) -> Part:
    return replace(make(9, draw.uniform(300, 600)), uses_spot=False)


def _training_now(draw: random.Random, make: Make) -> Part:
    return _lively(make(0, HOURS - draw.uniform(14, 20)), step_s=3.0, hours=60)


def _young(draw: random.Random, make: Make) -> Part:
    return _lively(make(6, HOURS - draw.uniform(1.2, 1.8)), step_s=2.0, hours=24)


def _stormy(draw: random.Random, make: Make) -> Part:
    """Loses its nodes every few minutes, so that there is something to see."""
    part = _lively(make(3, HOURS - draw.uniform(2.2, 2.6)), step_s=1.0, hours=30)
    program = replace(part.program, setup_s=25, restore_s=8, checkpoint_every_steps=90, upload_s=6)
    climate = replace(
        part.climate, provision_s=40, mtbf_s=540, notice_s=30, zone_hazards=(), hour_hazards=()
    )
    return replace(part, program=program, climate=climate)


def _waiting_now(draw: random.Random, make: Make) -> Part:
    return _without_room(make(4, HOURS - draw.uniform(2.0, 3.4)))


_STORIES: Final = (
    *(_missing_file, _out_of_memory, _one_bad_batch, _no_progress, _cancelled, _cancelled_waiting),
    *(_too_dear, _paused_and_resumed, _raised, _silent_market, _forgotten, _on_demand),
    *(_training_now, _young, _stormy, _waiting_now),
)


def _failing(part: Part, failure: Failure) -> Part:
    return replace(part, program=replace(part.program, failure=failure))


def _without_room(part: Part) -> Part:
    climate = replace(part.climate, provision_s=420.0, denial_rate=0.999)
    return replace(part, climate=climate)


def _lively(part: Part, *, step_s: float, hours: float) -> Part:
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
