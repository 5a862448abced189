"""The launcher of this machine: nodes are groups of processes, taken away and brought back as on a spot market.

    launcher    the port: submit, look, cancel, logs, preempt
    submission  from an order to a running supervisor, at most once
    folder      the launch directory, which is the truth
    history     what happened to a launch, and how it is seen
    supervisor  one process per launch: plays the market and recovers
    watch       one standing placement until it is to end
    verdict     what its end means
    gang        the nodes of one placement
    guard       one process per node: nothing it started outlives it

`LocalLauncher` is imported on first use: a supervisor lives in this package too, and there is one for every launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.launchers.local.launcher import LocalLauncher


__all__ = ["LocalLauncher"]


def __getattr__(name: str) -> object:
    if name == "LocalLauncher":
        from holdfast.launchers.local.launcher import LocalLauncher  # noqa: PLC0415 - see above

        return LocalLauncher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
