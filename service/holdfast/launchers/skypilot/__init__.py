"""SkyPilot managed jobs as a launcher. The only package that knows SkyPilot; it speaks to its API server over HTTP.

door        one HTTP call, one try
replies     a success, a no that is meant, or nothing to conclude from
rows        what is in an answer, read with care
chronicle   what SkyPilot tells of a launch, remembered
story       its events become a sighting (pure)
listing     one queue listing for all jobs, shared
order       a launch becomes the body of SkyPilot's request
upload      files for an API server on another machine
search      a request becomes a job, or does not
clusters    what stands, whatever jobs are said to be
launcher    the port: submit, look, cancel, logs
strays      what no job owns
vitals      what its server says of itself
"""

from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.launcher import SkyPilotLauncher

__all__ = ["SkyPilotClient", "SkyPilotLauncher"]
