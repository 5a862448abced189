"""A stand-in for SkyPilot's API server: as slow to answer, as forgetful and as careless about names as the real one.

nature    what befalls a managed job, drawn from a seed
moments   when that is
truth     the requests, jobs and clusters of one server, moved by a clock
files     what it makes of uploads
server    the part of its HTTP that the adapter uses
line      the way there, on which calls and replies are lost
port      the stand-in behind a real port
"""

from skystand.line import Line, bad_answers
from skystand.moments import Loss
from skystand.nature import Nature
from skystand.server import Server
from skystand.truth import Job, Truth

__all__ = ["Job", "Line", "Loss", "Nature", "Server", "Truth", "bad_answers"]
