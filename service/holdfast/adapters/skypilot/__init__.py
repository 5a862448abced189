"""SkyPilot managed jobs as a launcher. The only package that knows SkyPilot; it speaks to its API server over HTTP.

door        one HTTP call, one try
rows        SkyPilot's answers, read with care
story       its events become a sighting (pure)
listing     one queue listing for all jobs, shared
order       a launch becomes the body of SkyPilot's request
upload      files for an API server on another machine
launcher    the port: submit, look, cancel, logs
strays      what no job owns
vitals      what its server says of itself
"""

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.launcher import SkyPilotLauncher

__all__ = ["Door", "SkyPilotLauncher"]
