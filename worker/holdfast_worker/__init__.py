"""The part of Holdfast that runs in the training process: `Run` and `ExactSampler`.

Both are imported on first use, so that the service and its CLI can import `holdfast_worker.protocol` without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast_worker.data.exact_sampler import ExactSampler
    from holdfast_worker.run import Run

__all__ = ["ExactSampler", "Run"]


def __getattr__(name: str) -> object:
    if name == "Run":
        from holdfast_worker.run import Run  # noqa: PLC0415 - load torch only on first use

        return Run
    if name == "ExactSampler":
        from holdfast_worker.data.exact_sampler import ExactSampler  # noqa: PLC0415 - the same

        return ExactSampler
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
