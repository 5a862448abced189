"""SkyPilot's API server as a process of its own: found, configured, started, reused, ended. `holdfast up` uses it.

It has a folder for its HOME and a Python for its packages, neither shared with anything else, and it outlives this
service: jobs go on without us.

place           the folder, and what is where in it
interpreter     which Python has SkyPilot, and how to come by one
configuration   what its config.yaml has to say (pure)
credentials     the person's keys to clouds, made visible there
environment     the environment that it is given
process         one server as a process: start, recognise, end
opening         all of it in order
"""

from holdfast.skyserver.configuration import needed
from holdfast.skyserver.interpreter import install_if_missing
from holdfast.skyserver.opening import configure, end_server, open_server
from holdfast.skyserver.place import Place

__all__ = ["Place", "configure", "end_server", "install_if_missing", "needed", "open_server"]
