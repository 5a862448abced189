"""The launcher of this machine: nodes are groups of processes, taken away and brought back as on a spot market.

launcher    the port: submit, look, cancel, logs, preempt
submission  from an order to a running supervisor, at most once
folder      the launch directory, which is the truth
history     what happened to a launch, and how it is seen
supervisor  one process per launch: plays the market, watches, recovers
gang        the nodes of one placement
guard       one process per node: nothing it started outlives it
"""

from holdfast.adapters.local.launcher import LocalLauncher

__all__ = ["LocalLauncher"]
