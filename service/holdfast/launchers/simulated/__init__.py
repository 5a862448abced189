"""A cloud without machines: launches, preemptions and reports computed from a seed and a clock.

clock      time that moves when it is told to
habits     what the launcher does by itself, beside the weather
program    what a training program says and does in one placement
timeline   what becomes of one launch: pure, from its order, its wishes and the weather
cloud      the ports: Launcher, Preemptible and ReportInbox
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
