"""Slow reference implementation of the retention policy, one rule at a time."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.domain.checkpoints.retention import Commit
from holdfast.domain.jobfile.retention_policy import Mode, RetentionPolicy


def is_asked_for(one: Commit, among: Collection[Commit], keep: RetentionPolicy) -> bool:
    """Whether the policy keeps this commit of the lineage."""
    if sum(other.name > one.name for other in among) < keep.last:
        return True
    if every := keep.every_steps:
        stretch = one.name.step // every
        same = [other.name for other in among if other.name.step // every == stretch]
        if stretch and min(same) == one.name:
            return True
    if keep.best and one.score:
        sign = 1 if keep.best.mode is Mode.MIN else -1
        carriers = [other.name for other in among if other.score == one.score]
        scores = {other.score for other in among if other.score}
        mine = (sign * one.score.value, one.score.step)
        better = [s for s in scores if (sign * s.value, s.step) < mine]
        return min(carriers) == one.name and len(better) < keep.best.count
    return False
