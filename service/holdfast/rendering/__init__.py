"""Renders a `JobSpec` as a SkyPilot task, and adds the values known only at launch."""

from holdfast.rendering.base_task import (
    REDACTED,
    WHEEL_MOUNT,
    WHEEL_PLACEHOLDER,
    bundled_accelerators,
    dump,
    dump_all,
    load,
    load_all,
    with_launch_values,
)
from holdfast.rendering.slurm import (
    batch_script,
    export_lines,
    sbatch_options,
    slurm_notes,
    standalone_script,
    standalone_script_notes,
)
from holdfast.rendering.task import RenderedTask, read_and_render, render
from holdfast.rendering.torchrun import (
    NodeCommand,
    TorchrunRequest,
    torchrun_commands,
    torchrun_notes,
)

__all__ = [
    "REDACTED",
    "WHEEL_MOUNT",
    "WHEEL_PLACEHOLDER",
    "NodeCommand",
    "RenderedTask",
    "TorchrunRequest",
    "batch_script",
    "bundled_accelerators",
    "dump",
    "dump_all",
    "export_lines",
    "load",
    "load_all",
    "read_and_render",
    "render",
    "sbatch_options",
    "slurm_notes",
    "standalone_script",
    "standalone_script_notes",
    "torchrun_commands",
    "torchrun_notes",
    "with_launch_values",
]
