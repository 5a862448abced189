"""Two thousand random corruptions of stored objects: none is loaded, and each is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from worker.support.stores import LATER_S, MemoryStore, RankGroup, newest

CORRUPTIONS = 2000
RANKS = 2
Objects = dict[str, bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Three checkpoints of two ranks."""
    store = MemoryStore()
    group = RankGroup(store, tmp_path_factory.mktemp("spool"))
    for step in (10, 20, 30):
        group.save(step)
    return store.objects


def flip(objects: Objects, key: str, chance: random.Random) -> None:
    data = bytearray(objects[key])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    objects[key] = bytes(data)


def truncate(objects: Objects, key: str, chance: random.Random) -> None:
    objects[key] = objects[key][: chance.randrange(len(objects[key]))]


def lengthen(objects: Objects, key: str, chance: random.Random) -> None:
    objects[key] += chance.randbytes(chance.randint(1, 40))


def empty(objects: Objects, key: str, _: random.Random) -> None:
    objects[key] = b""


def blank(objects: Objects, key: str, _: random.Random) -> None:
    objects[key] = bytes(len(objects[key]))


def lose(objects: Objects, key: str, _: random.Random) -> None:
    del objects[key]


def swap(objects: Objects, key: str, chance: random.Random) -> None:
    """Exchange an object with a different one of any checkpoint and rank."""
    others = [
        k for k in objects if objects[k] != objects[key] and k.startswith(("step-", "commits/"))
    ]
    other = chance.choice(others)
    objects[key], objects[other] = objects[other], objects[key]


def serve_older(objects: Objects, key: str, _: random.Random) -> None:
    """Replace an object by the one of the same kind in an older checkpoint."""
    objects[key] = objects[_older(key, objects)]


DAMAGES: tuple[Callable[[Objects, str, random.Random], None], ...] = (
    *(flip, truncate, lengthen, empty),
    *(blank, lose, swap, serve_older),
)


def _older(key: str, objects: Objects) -> str:
    """The corresponding object of the previous checkpoint."""
    of = CheckpointName.of_key(key)
    assert of
    [place] = [k for k in objects if _place(k) == _place(key) and _step(k) == of.step - 10]
    return place


def _step(key: str) -> int:
    name = CheckpointName.of_key(key)
    return name.step if name else -1


def _place(key: str) -> str:
    return "commit" if key.startswith("commits/") else key.partition("/")[2]


def _newest_objects(objects: Objects) -> Iterator[str]:
    return (key for key in sorted(objects) if _step(key) == 30)


def test_corrupted_objects_are_never_loaded(sound: Objects) -> None:
    chance = random.Random(4)
    seen: set[str] = set()
    for number in range(CORRUPTIONS):
        objects = dict(sound)
        damage = DAMAGES[number % len(DAMAGES)]
        key = chance.choice(list(_newest_objects(objects)))
        damage(objects, key, chance)
        store = MemoryStore(objects)

        # Every loaded number is checked to be of one step and of the reading rank.
        step, flaws = newest(store, RANKS)

        is_gone = damage is lose and key.startswith("commits/")
        assert step < 30, f"{damage.__name__} of {key} was loaded"
        assert flaws or is_gone, f"{damage.__name__} of {key} was passed over in silence"
        assert step > 0, f"{damage.__name__} of {key} cost all that was saved: {flaws}"
        seen.update(flaws)
    assert len(seen) > len(DAMAGES)


@pytest.mark.parametrize(
    "pointer",
    [b"", b"{", b"[]", b'{"step": 20}', b'{"step": 90, "epoch": 1, "nonce": "0123"}', bytes(20)],
)
def test_wrong_latest_pointer_has_no_effect(sound: Objects, pointer: bytes) -> None:
    step, _ = newest(MemoryStore({**sound, "newest.json": pointer}), RANKS)

    assert step == 30


def test_unlisted_commit_is_found_by_the_latest_pointer(sound: Objects, tmp_path: Path) -> None:
    class UnlistingStore(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            return [key for key in super().list(prefix) if _step(key) != 30]

    assert CheckpointRepository(UnlistingStore(sound)).names(LATER_S)[0].step == 30
