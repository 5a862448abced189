"""Where ranks meet: the address and port of rank 0 for each launcher, and the backend.

`RankIdentity` asks for an `init_method` here, and `ProcessGroup.join` passes it to
`init_process_group` (`distributed/process_group.py`). The first of these that is set applies:

* Explicit: the address or file in HOLDFAST_INIT_METHOD.
* torchrun: `env://`, the MASTER_ADDR and MASTER_PORT that it sets for its ranks.
* Slurm (`srun python`): the first host of the job's list, and a port computed from its id.
* SkyPilot's variables, which all launchers of Holdfast set: the first node IP, and port 29400;
  on one node 127.0.0.1 and a free port.
  `holdfast-worker run` passes both to torchrun (`node/launch.py`), whose ranks use `env://`.
For the last two, HOLDFAST_MASTER_PORT sets a different port.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from random import SystemRandom
from typing import Final
from urllib.parse import urlsplit

from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Env, SkyEnv, int_variable
from holdfast_worker.topology import slurm

ENV_INIT_METHOD: Final = "env://"
"""Rendezvous at MASTER_ADDR and MASTER_PORT, which torchrun sets."""
BACKENDS: Final = ("gloo", "nccl")
"""Supported backends of torch.distributed."""
MASTER_PORT: Final = 29400
"""Default rendezvous port of several nodes."""
SLURM_FIRST_PORT: Final = 20_000
"""First rendezvous port of Slurm jobs.
A lower value uses ports of services; a higher value uses the kernel's ephemeral ports."""
SLURM_PORTS: Final = 10_000
"""Number of rendezvous ports of Slurm jobs.
A lower value makes collisions of two jobs on one node likelier; a higher value uses ephemeral ports."""
MAX_PORT: Final = 65_535
FREE_PORTS: Final = range(10_000, 20_000)
"""Ports of which a single node takes a free one, some seconds before it listens.
Lower ones belong to services; the kernel gives higher ones to outgoing connections, which may take them before."""
FREE_PORT_TIMEOUT_S: Final = 10.0
"""Time for a rendezvous port to become free.
A lower value fails while an earlier run ends; a higher value pays for idle nodes."""
POLL_S: Final = 0.2
"""Interval of checks. A lower value burns a core; a higher value delays the start."""


def torchrun_init_method(env: Mapping[str, str]) -> str:
    """The `init_method` of a rank of torchrun.

    Raises:
        ValueError: the environment has an invalid address, or there is no address.
    """
    return _init_method(env)


def slurm_init_method(env: Mapping[str, str]) -> str:
    """The `init_method` of a task of Slurm, computed in the same way on all nodes.

    Raises:
        ValueError: the environment has an invalid address, or no list of hosts.
    """
    return _init_method(env, lambda: _tcp_init_method(*_slurm_master(env)))


def nodes_init_method(env: Mapping[str, str], address: str, port: int) -> str:
    """The `init_method` of the only rank of a node, given the master of its nodes.

    Raises:
        ValueError: the environment has an invalid address.
    """
    return _init_method(env, lambda: _tcp_init_method(address, port))


def _init_method(env: Mapping[str, str], fallback: Callable[[], str] | None = None) -> str:
    """The `init_method` of torch from the environment, or else from `fallback`."""
    method = env.get(Env.INIT_METHOD, "")
    if method and method != ENV_INIT_METHOD:
        return _validate_init_method(method)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if not missing:
        _check_port("MASTER_PORT", int_variable(env, "MASTER_PORT", 0))
        return ENV_INIT_METHOD
    if fallback and not method:
        return fallback()
    raise ValueError(
        f"{missing[0]} is not set, so that the ranks have no rendezvous: "
        f"start the script with torchrun, or set {Env.INIT_METHOD} to tcp://HOST:PORT"
    )


def _slurm_master(env: Mapping[str, str]) -> tuple[str, int]:
    """The first host of the step or the job, and the port of the job."""
    name = slurm.step_or_job_variable(env, "NODELIST", "JOB_NODELIST")
    if not env.get(name):
        raise ValueError(f"SLURM_PROCID is set, but {name} is not: start the script with srun")
    try:
        host = slurm.expand_hosts(env[name])[0]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    job = int_variable(env, "SLURM_JOB_ID", 0) or int_variable(env, "SLURM_JOBID", 0)
    return host, int_variable(env, Env.MASTER_PORT, 0) or SLURM_FIRST_PORT + job % SLURM_PORTS


def _tcp_init_method(host: str, port: int) -> str:
    """The `init_method` of torch for a host and port."""
    _check_port(Env.MASTER_PORT, port)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def master_address(env: Mapping[str, str], nodes: int) -> str:
    """The address of node 0 of `nodes`, from the node IPs of SkyPilot.

    Raises:
        ValueError: the number of IPs differs from that of the nodes.
    """
    addresses = env.get(SkyEnv.NODE_IPS, "").split()
    if nodes > 1 and len(addresses) != nodes:
        msg = f"{SkyEnv.NUM_NODES} is {nodes}, but {SkyEnv.NODE_IPS} names {len(addresses)}"
        raise ValueError(msg)
    return addresses[0] if nodes > 1 else "127.0.0.1"


def own_address(env: Mapping[str, str], node_rank: int) -> str:
    """The address of a node itself, from the node IPs of SkyPilot.

    Raises:
        ValueError: there are fewer IPs than nodes.
    """
    addresses = env.get(SkyEnv.NODE_IPS, "").split()
    if node_rank >= len(addresses):
        msg = f"{SkyEnv.NODE_RANK} is {node_rank}, but {SkyEnv.NODE_IPS} names {len(addresses)}"
        raise ValueError(msg)
    return addresses[node_rank]


def master_port(env: Mapping[str, str], nodes: int) -> int:
    """The rendezvous port: from the environment, or else the fixed one of several nodes.

    A single node takes any free port, so that two runs do not collide.
    """
    chosen = int_variable(env, Env.MASTER_PORT, 0)
    return chosen or (MASTER_PORT if nodes > 1 else free_port())


def free_master_port(
    port: int, *, nodes: int, node_rank: int, timeout_s: float = FREE_PORT_TIMEOUT_S
) -> int:
    """The rendezvous port, once it is free on node 0.

    A single node chooses a different port. Several nodes wait, as they could not agree on a different one.

    Raises:
        ValueError: the port stays in use.
    """
    if node_rank or is_free(port):
        return port
    if nodes == 1:
        free = free_port()
        log_info(f"port {port} is in use: using port {free} for the rendezvous")
        return free
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        time.sleep(POLL_S)
        if is_free(port):
            return port
    raise ValueError(
        f"the rendezvous port {port} is in use on node 0: "
        f"set {Env.MASTER_PORT} on all nodes to a different port, such as {free_port()}, which is free here"
    )


def is_free(port: int) -> bool:
    """Whether a port is free on all addresses, as torchrun of node 0 needs it."""
    with socket.socket() as probe:
        # As torchrun does, so that closing connections of an earlier run do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def free_port() -> int:
    """A free port of `FREE_PORTS`.

    Raises:
        ValueError: all are in use.
    """
    for port in SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
        if is_free(port):
            return port
    raise ValueError(f"the ports {FREE_PORTS[0]} to {FREE_PORTS[-1]} are in use on this node")


def backend(env: Mapping[str, str]) -> str | None:
    """The configured backend; None: chosen by device.

    Raises:
        ValueError: the environment names an unsupported backend.
    """
    text = env.get(Env.BACKEND, "")
    if not text or text in BACKENDS:
        return text or None
    [closest, *_] = [*get_close_matches(text.lower(), BACKENDS, 1, 0.5), ""]
    guess = f"did you mean {closest}? " if closest else ""
    raise ValueError(f"{Env.BACKEND} is {text!r}: {guess}write {' or '.join(BACKENDS)}")


def _validate_init_method(method: str) -> str:
    """Validate `tcp://HOST:PORT` or `file:///PATH`."""
    try:
        parts = urlsplit(method)
        is_address = parts.scheme == "tcp" and bool(parts.hostname and parts.port)
    except ValueError:  # An invalid port.
        is_address = False
    else:
        if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
            return method
    if not is_address:
        raise ValueError(
            f"{Env.INIT_METHOD} is {method!r}: write env://, tcp://HOST:PORT or file:///PATH"
        )
    return method


def _check_port(name: str, port: int) -> None:
    if not 0 < port <= MAX_PORT:
        raise ValueError(f"{name} is {port}, which is not a port: write 1024 to {MAX_PORT}")


def address_of_this_node(master_address: str) -> str:
    """The address at which other nodes reach this one: that of the interface towards the master."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master_address, 9))  # Sends nothing.
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
