"""Simulated cloud: launches, preemptions and reports computed from a seed and a clock.

program   what a training program does and reports in one placement
timeline  the behavior of the launcher, and the course of one launch from its order, reclaims and market (pure)
cloud     the ports: Launcher, Preemptible and ReportInbox
"""

from holdfast.clock import SimulatedClock
from holdfast.launchers.simulated.cloud import SimulatedCloud
from holdfast.launchers.simulated.program import Failure, SimulatedProgram
from holdfast.launchers.simulated.timeline import LIKE_SKYPILOT, LauncherBehavior

__all__ = [
    "LIKE_SKYPILOT",
    "Failure",
    "LauncherBehavior",
    "SimulatedClock",
    "SimulatedCloud",
    "SimulatedProgram",
]
