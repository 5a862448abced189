"""SkyPilot's API server as a process of its own: found, configured, started, reused, ended. `holdfast up` uses it.

It has a folder for its HOME and a Python for its packages, neither shared with anything else, and it outlives this
service: jobs go on without us.

place           the folder, and what is where in it
interpreter     which Python has SkyPilot, and how to come by one
configuration   what its config.yaml has to say (pure)
gate            the module by which it asks this service, put beside its packages
holdfast_gate   that module itself; SkyPilot imports it, and nothing here can
credentials     the person's keys to clouds, made visible there
environment     the environment that it is given
process         one server as a process: start, recognise, end
opening         all of it in order
"""

from holdfast.skypilot_server.admission_plugin import SOURCE, install_gate, write_gate_address
from holdfast.skypilot_server.configuration import GATE, needed
from holdfast.skypilot_server.interpreter import install_if_missing
from holdfast.skypilot_server.server import configure_shared, end_server, open_server
from holdfast.skypilot_server.server_dir import ServerDir

__all__ = [
    "GATE",
    "SOURCE",
    "ServerDir",
    "configure_shared",
    "end_server",
    "install_gate",
    "install_if_missing",
    "needed",
    "open_server",
    "write_gate_address",
]
