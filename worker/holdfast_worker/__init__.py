"""The part of Holdfast that runs beside the model: put `Run` around a training loop.

What is here is imported on first use: the service and the command line read `holdfast_worker.protocol.environment` without having torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast_worker.data.exact_sampler import ExactSampler
    from holdfast_worker.run import Run

__all__ = ["ExactSampler", "Run"]


def __getattr__(name: str) -> object:
    if name == "Run":
        from holdfast_worker.run import Run  # noqa: PLC0415 - torch only when it is asked for

        return Run
    if name == "ExactSampler":
        from holdfast_worker.data.exact_sampler import ExactSampler  # noqa: PLC0415 - the same

        return ExactSampler
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
