"""A fake SkyPilot API server with the delays, losses and name handling of the real one.

job_simulation  the course of a managed job, drawn from a seed
moments         the clock of its events, and capacity losses
state           requests, jobs and clusters of one server, driven by a clock
files           the contents of uploads
server          the HTTP API as far as the launcher uses it
network_faults  a transport that loses requests and responses
socket_server   the fake server on a real port
"""

from fake_skypilot.job_simulation import JobSimulation
from fake_skypilot.moments import Loss
from fake_skypilot.network_faults import FaultyTransport, faulty_responses
from fake_skypilot.server import Server
from fake_skypilot.state import Job, SkyPilotState

__all__ = [
    "FaultyTransport",
    "Job",
    "JobSimulation",
    "Loss",
    "Server",
    "SkyPilotState",
    "faulty_responses",
]
