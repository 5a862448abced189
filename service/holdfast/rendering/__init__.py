"""A `JobSpec` becomes the SkyPilot task that launchers are given, and, at its launch, gets what is never stored."""

from holdfast.rendering.base_task import (
    HIDDEN,
    WHEEL_MOUNT,
    WHEEL_PLACEHOLDER,
    dump,
    load,
    with_launch_values,
)
from holdfast.rendering.slurm import (
    by_sbatch,
    exports,
    notes_of_sbatch,
    notes_of_slurm,
    options_of,
    script,
)
from holdfast.rendering.task import Rendered, render
from holdfast.rendering.torchrun import ByHand, NodeCommand, by_hand, notes_of_hand

__all__ = [
    "HIDDEN",
    "WHEEL_MOUNT",
    "WHEEL_PLACEHOLDER",
    "ByHand",
    "NodeCommand",
    "Rendered",
    "by_hand",
    "by_sbatch",
    "dump",
    "exports",
    "load",
    "notes_of_hand",
    "notes_of_sbatch",
    "notes_of_slurm",
    "options_of",
    "render",
    "script",
    "with_launch_values",
]
