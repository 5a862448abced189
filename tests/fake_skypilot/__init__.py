"""A stand-in for SkyPilot's API server: as slow to answer, as forgetful and as careless about names as the real one.

nature    what befalls a managed job, drawn from a seed
moments   when that is
truth     the requests, jobs and clusters of one server, moved by a clock
files     what it makes of uploads
server    the part of its HTTP that the adapter uses
line      the way there, on which calls and replies are lost
port      the stand-in behind a real port
"""

from fake_skypilot.job_simulation import JobSimulation
from fake_skypilot.moments import Loss
from fake_skypilot.network_faults import FaultyTransport, bad_answers
from fake_skypilot.server import Server
from fake_skypilot.state import Job, SkyPilotState

__all__ = [
    "FaultyTransport",
    "Job",
    "JobSimulation",
    "Loss",
    "Server",
    "SkyPilotState",
    "bad_answers",
]
