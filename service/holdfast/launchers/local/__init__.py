"""Local launcher: nodes are process groups, preempted and replaced as on a spot market.

    launcher         the port: submit, observe, cancel, logs, preempt
    submission       starts a supervisor for a launch, at most once
    launch_spec      what the supervisor runs
    launch_dir       the launch directory, which is the truth, and its lock
    event_log        the log of a launch and the observation derived from it
    supervisor       one process per launch: simulates the market and recovers
    outcome          what the end of a placement means
    process_group    the nodes of one placement
    node_guard       one process per node, which ends everything that the node started
    process_cleanup  kills descendants and processes of dead launches
    sandbox, cgroup  accounts and limits of confined jobs
    environment      variables of supervisors and nodes

`LocalLauncher` is imported on first use, because each launch has a supervisor process that imports this package.
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
