"""Runs SkyPilot's API server as a separate process, for `holdfast up`.

Finds, configures, starts, reuses and stops it. The server has its own HOME directory and Python environment, and it
outlives this service, so that jobs continue.

    server_dir        the directory and its files
    interpreter       finds or installs a Python with SkyPilot
    configuration     the required contents of config.yaml (pure)
    admission_plugin  installs the module by which SkyPilot asks this service
    holdfast_gate     that module itself; only SkyPilot can import it
    environment       links to the user's cloud credentials, and the server's variables
    process           one server process: start, identify, stop
    server            the whole sequence
"""

from holdfast.skypilot_server.admission_plugin import SOURCE, install_gate, write_gate_address
from holdfast.skypilot_server.configuration import GATE, required_lines
from holdfast.skypilot_server.interpreter import install_if_missing
from holdfast.skypilot_server.server import configure_shared, open_server, stop_server
from holdfast.skypilot_server.server_dir import ServerDir

__all__ = [
    "GATE",
    "SOURCE",
    "ServerDir",
    "configure_shared",
    "install_gate",
    "install_if_missing",
    "open_server",
    "required_lines",
    "stop_server",
    "write_gate_address",
]
