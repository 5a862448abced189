"""Which addresses messages and requests to stores may go to: the public internet, and networks that a setting names.

Whoever may add a channel or submit a job must not reach what only this machine reaches: the services beside it, the network behind
it, and the metadata of its cloud, which hands out keys. A name is resolved once, every address that it has is
checked, and the connection goes to one of those: a name server that says another thing a moment later is not asked.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from holdfast.errors import BadRequest, NotDelivered

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Sequence[str]]

METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google, Azure, Oracle, OpenStack, ...
        "169.254.170.2",  # AWS, for containers
        "169.254.170.23",  # AWS, for pods
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure; a public address, by its looks
        "192.0.0.192",  # Oracle
    )
)
"""What hands out keys of clouds; refused whatever a setting says."""
_WRAPPED: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64, of a network's own
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "fec0::/10",  # site-local, of old
    )
)
"""Forms of IPv6 in which an IPv4 address, of whatever network, is hidden; and one that Python calls public."""
_RELAYS: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.88.99.0/24",  # Relays of 6to4
        "192.52.193.0/24",  # Relays of AMT
        "192.31.196.0/24",  # AS112
        "192.175.48.0/24",
        "2620:4f:8000::/48",
        "2001::/23",  # Protocols of the IETF: Teredo, AMT, AS112, anycast of PCP and TURN
    )
)
"""Addresses that Python calls public, and that the nearest network answers for: a relay, or a server for a protocol."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out; what lies beside it is for purposes of its own, known to Python or not."""
_EXAMPLES: Final = ipaddress.IPv6Network("3fff::/20")
"""For documentation, since RFC 9637, which Python 3.11 does not know."""
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


class EgressPolicy:
    """Decides where messages may be sent to."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        resolve: Resolve | None = None,
        *,
        way_out: str = "HOLDFAST_NOTIFY_NETWORKS may allow its network",
    ) -> None:
        self._allowed = allowed
        self._resolve = resolve or _resolve
        self._way_out = way_out

    def pick(self, host: str, port: int) -> list[str]:
        """Addresses of a host that may be connected to, the first of each family: not everybody has both.

        Raises:
            NotDelivered: it has none, or one that is refused: then the name is not to be trusted.
        """
        try:
            found = [ipaddress.ip_address(text.partition("%")[0]) for text in self._resolve(host, port)]  # fmt: skip
        except (OSError, UnicodeError) as error:
            raise NotDelivered(f"{host} has no address ({error})") from error
        if not found:
            raise NotDelivered(f"{host} has no address")
        for address in found:
            if why := self.refusal(address):
                raise NotDelivered(f"{host} is refused: {address} {why}")
        firsts = {address.version: str(address) for address in reversed(found)}
        return [firsts[version] for version in dict.fromkeys(address.version for address in found)]

    def literal(self, host: str) -> str:
        """Why nothing is sent to a host that is an address itself, in words; empty where it may be, and for names."""
        try:
            return self.refusal(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            return ""

    def refusal(self, address: Address) -> str:
        """Why nothing is sent to an address, in words; empty where it may be."""
        hidden = _hidden(address)
        if address in METADATA or hidden in METADATA:
            return "hands out keys of a cloud"
        if self.allows(address):
            # Whoever allows a prefix of NAT64 means the public internet behind it.
            return self.refusal(hidden) if hidden else ""
        if isinstance(address, ipaddress.IPv6Address) and _is_wrapped(address):
            return "is an IPv4 address in another form"
        if address.is_multicast:
            return "is of many machines"
        if not address.is_global or address.is_reserved or _is_odd(address):
            return f"is not public; {self._way_out}"
        return ""

    def allows(self, address: Address) -> bool:
        """Whether a setting names its network."""
        return any(address in network for network in self._allowed)


def networks(text: str) -> tuple[Network, ...]:
    """Those of a list with commas, such as `10.1.0.0/16, fd00::/8`.

    Raises:
        BadRequest: one of them is no network.
    """
    found: list[Network] = []
    for word in filter(None, map(str.strip, text.split(","))):
        try:
            found.append(ipaddress.ip_network(word))
        except ValueError as error:
            raise BadRequest(
                f"HOLDFAST_NOTIFY_NETWORKS: {word!r} is no network ({error}); write one such as 10.1.0.0/16"
            ) from error
    return tuple(found)


@functools.cache
def system_tls() -> ssl.SSLContext:
    """TLS that trusts the certificate authorities of this system. To load them takes 20 ms."""
    return ssl.create_default_context()


def _is_odd(address: Address) -> bool:
    if any(address in network for network in _RELAYS):
        return True
    return address.version == 6 and (address not in _UNICAST or address in _EXAMPLES)


def _is_wrapped(address: ipaddress.IPv6Address) -> bool:
    isatap = int(address) >> 32 & 0xFFFFFFFF in _ISATAP
    return isatap or any(address in network for network in _WRAPPED)


def _hidden(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that is written in an IPv6 one; None where there is none."""
    if not isinstance(address, ipaddress.IPv6Address) or not _is_wrapped(address):
        return None
    if address.is_loopback or address.is_site_local:
        return None
    if address.teredo:
        return address.teredo[1]
    return address.sixtofour or ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]
