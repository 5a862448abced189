"""Headlines of four classes, generated from a seed, so the same on every machine."""

import random

KINDS = ("world", "sports", "business", "science")

_WHO = {
    "world": ("The president", "Parliament", "The foreign minister", "A court", "The envoy"),
    "sports": ("The captain", "The home side", "A young striker", "The champion", "The coach"),
    "business": ("The bank", "A carmaker", "The chain of shops", "Investors", "The airline"),
    "science": ("Astronomers", "A laboratory", "The probe", "Engineers", "A team of biologists"),
}
_DOES = {
    "world": ("signs", "rejects", "debates", "delays", "welcomes"),
    "sports": ("wins", "loses", "postpones", "celebrates", "forfeits"),
    "business": ("sells", "buys", "cuts", "raises", "reports"),
    "science": ("finds", "measures", "tests", "publishes", "repairs"),
}
_WHAT = {
    "world": ("a treaty on the border", "the new budget", "an election", "sanctions", "a truce"),
    "sports": ("the final", "a match in the rain", "the cup", "the derby", "a medal"),
    "business": ("its shares", "profits", "a thousand jobs", "prices", "a rival"),
    "science": ("a distant planet", "a new telescope", "a vaccine", "old samples", "a battery"),
}
_WHEN = ("on Monday", "after long talks", "in the north", "again", "for the first time", "at last")


def headlines(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Headlines with their class numbers; a tenth of them contain a word of another class."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        number = dice.randrange(len(KINDS))
        kind = KINDS[number]
        other = dice.choice(KINDS) if dice.random() < 0.1 else kind
        words = (_WHO[kind], _DOES[other], _WHAT[kind], _WHEN)
        made.append((" ".join(dice.choice(some) for some in words), number))
    return made
