"""A moto server whose EC2 instances run on this machine: `python -m e2e.fake_aws.fakeaws`.

Beside the APIs of AWS it has an endpoint for tests, /skycloud/..., which controls preemptions and capacity.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import yaml
from e2e.fake_aws.hosts import Host
from e2e.fake_aws.metadata import InstanceMetadata, Metadata, serve
from e2e.fake_aws.paths import AWS_PORT, Paths
from holdfast.clock import SystemClock
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.models.instances import Instance, InstanceBackend, StateReason
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")
os.environ.setdefault("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")

RECLAIMED = "Server.SpotInstanceTermination"


class NoCapacity(EC2ClientError):
    """AWS's error for a zone without capacity."""

    def __init__(self, zone: str) -> None:
        super().__init__(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient capacity in the Availability Zone you requested ({zone}).",
        )


@dataclass
class InstanceHosts:
    """The instances as machines: boot, notices, preemptions, and denied capacity."""

    paths: Paths
    denied: list[dict[str, str | None]] = field(default_factory=list)
    _last_address: Iterator[int] = field(default_factory=lambda: itertools.count(256 + 10))

    def __post_init__(self) -> None:
        self.metadata = Metadata(self.instance_metadata)
        self._clock = SystemClock()
        self._write_lock = threading.Lock()

    def next_address(self) -> str:
        """Return an address that no instance has had before."""
        number = next(self._last_address)
        return f"10.77.{number // 256}.{number % 256}"

    def note(self, kind: str, **args: object) -> None:
        """Record an event."""
        line = json.dumps({"at": self._clock.now().isoformat(), "kind": kind, **args})
        with self._write_lock, self.paths.events.open("a") as file:
            file.write(f"{line}\n")

    def demand_capacity(self, region: str, zone: str, market: str) -> None:
        """Return if there is capacity for an instance.

        Raises:
            NoCapacity: it was denied.
        """
        asked = {"region": region, "zone": zone, "market": market}
        for rule in self.denied:
            if all(value in (None, asked[name]) for name, value in rule.items()):
                self.note("nocapacity", **asked)
                raise NoCapacity(zone)

    def boot(self, instance: Any, user_data: Any) -> None:
        """Start the host of an instance, with the user and keys of the user data."""
        result = yaml.safe_load(user_data.decode()) if user_data else {}
        user = (result.get("users") or [{"name": "ubuntu", "ssh_authorized_keys": []}])[0]
        keys = "\n".join(key.strip() for key in user["ssh_authorized_keys"])
        Host(self.paths, instance.id).start(instance.private_ip, user["name"], f"{keys}\n")
        self.note("boot", **_describe(instance))

    def kill_host(self, instance: Any) -> None:
        """Kill the host of an instance, for any reason."""
        self.metadata.forget(instance.private_ip)
        Host(self.paths, instance.id).kill()

    def preempt(self, instance_id: str, notice_s: float | None) -> None:
        """Preempt the instance: at once, or after a notice of `notice_s`."""
        instance = _find(lambda found: found.id == instance_id)
        if instance is None or not instance.is_running():
            return
        if notice_s is not None:
            now = self._clock.now()
            ends_at = now + timedelta(seconds=notice_s)
            self.metadata.set_notice(instance.private_ip, now=now, ends_at=ends_at)
            self.note("notice", **_describe(instance), ends_at=ends_at.isoformat())
            timer = threading.Timer(notice_s, self.preempt, (instance_id, None))
            timer.daemon = True
            timer.start()
            return
        self.note("preempt", **_describe(instance))
        _terminate_of_moto(instance)
        instance._reason = RECLAIMED
        instance.state_reason = StateReason(f"{RECLAIMED}: Spot instance termination", RECLAIMED)
        self.kill_host(instance)

    def advise_rebalance(self, instance_id: str) -> None:
        """Send a rebalance recommendation to the instance."""
        instance = _find(lambda found: found.id == instance_id)
        if instance is not None and instance.is_running():
            self.metadata.set_rebalance_recommendation(instance.private_ip, now=self._clock.now())
            self.note("rebalance", **_describe(instance))

    def instance_metadata(self, ip: str) -> InstanceMetadata | None:
        """The metadata of the running instance with this address; None if none exists."""
        instance = _find(lambda found: found.private_ip == ip and found.is_running())
        if instance is None:
            return None
        seen = _describe(instance)
        return InstanceMetadata(seen["id"], seen["ip"], seen["type"], seen["zone"], seen["market"])


_run_of_moto = InstanceBackend.run_instances
_terminate_of_moto = Instance.terminate
_interface_of_moto = NetworkInterface.__init__


def patch_moto(hosts: InstanceHosts) -> None:
    """Patch moto: instances are hosts with one address, and capacity can run out."""

    def interface(self: Any, ec2_backend: Any, subnet: Any, *args: Any, **more: Any) -> None:
        more.pop("private_ip_address", None)
        _interface_of_moto(self, ec2_backend, subnet, hosts.next_address(), *args[1:], **more)

    def own_address_is_public(self: Any) -> None:
        self.public_ip = self.private_ip_address

    def run(self: Any, image_id: str, count: int, user_data: Any, groups: Any, **more: Any) -> Any:
        market = "spot" if more.get("instance_market_options") else "on-demand"
        hosts.demand_capacity(self.region_name, _zone(self, more), market)
        reservation = _run_of_moto(self, image_id, count, user_data, groups, **more)
        for instance in reservation.instances:
            hosts.boot(instance, user_data)
        return reservation

    def terminate(self: Any, *args: Any, **more: Any) -> Any:
        is_new = self.is_running()
        answer = _terminate_of_moto(self, *args, **more)
        if is_new:
            hosts.note("terminate", **_describe(self))
            hosts.kill_host(self)
        return answer

    # The types of moto's own methods are narrower than those of their replacements.
    for owner, name, stand_in in (
        (NetworkInterface, "__init__", interface),
        (NetworkInterface, "check_auto_public_ip", own_address_is_public),
        (InstanceBackend, "run_instances", run),
        (Instance, "terminate", terminate),
    ):
        setattr(owner, name, stand_in)


class ControlApp(DomainDispatcherApplication):
    """Serves the control endpoint; passes other requests to moto."""

    hosts: InstanceHosts

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        path = environ.get("PATH_INFO", "")
        if not path.startswith("/skycloud/"):
            answer: Iterable[bytes] = super().__call__(environ, start_response)
            return answer
        length = int(environ.get("CONTENT_LENGTH") or 0)
        asked = json.loads(environ["wsgi.input"].read(length) or "{}")
        text = json.dumps(self._do(path.removeprefix("/skycloud/"), asked)).encode()
        start_response("200 OK", [("Content-Type", "application/json")])
        # aiohttp, which SkyPilot uses for /skycloud/ping, rejects a response to HEAD with a body.
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [text]

    def _do(self, what: str, asked: dict[str, Any]) -> Any:
        match what:
            case "preempt":
                self.hosts.preempt(asked["id"], asked["notice_s"])
            case "rebalance":
                self.hosts.advise_rebalance(asked["id"])
            case "deny":
                self.hosts.denied = asked["rules"]
            case "instances":
                return [_describe(instance) for instance in _instances()]
        return None


def _instances() -> Iterator[Any]:
    for account in list(ec2_backends.values()):
        for region in list(account.values()):
            yield from region.all_instances()


def _find(true: Callable[[Any], bool]) -> Any | None:
    return next(filter(true, _instances()), None)


def _describe(instance: Any) -> dict[str, Any]:
    names = [tag["value"] for tag in instance.get_tags() if tag["key"] == "Name"]
    return {
        "id": instance.id,
        "ip": instance.private_ip,
        "state": instance.state,
        "region": instance.region_name,
        "zone": instance.placement.zone,
        "type": instance.instance_type,
        "market": instance.lifecycle or "on-demand",
        "name": names[0] if names else "",
    }


def _zone(backend: Any, asked: dict[str, Any]) -> str:
    """The zone of the instance's subnet, or the named zone."""
    interfaces = asked.get("nics") or {}
    listed = interfaces.values() if isinstance(interfaces, dict) else interfaces
    for subnet in (asked.get("subnet_id"), *(item.get("SubnetId") for item in listed)):
        if subnet:
            return str(backend.get_subnet(subnet).availability_zone)
    return str(asked.get("placement") or "")


def main() -> None:
    """Serve until killed."""
    logging.basicConfig(level=logging.INFO)
    hosts = InstanceHosts(Paths.of_this_machine())
    patch_moto(hosts)
    serve(hosts.metadata)
    app = ControlApp(create_backend_app)
    app.hosts = hosts
    run_simple(
        "0.0.0.0", AWS_PORT, app, threaded=True
    )  # Inside of the namespace, which has no route out.


if __name__ == "__main__":
    main()
