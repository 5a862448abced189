"""Egress policy of messages and store requests: public internet and configured networks.

Users who add channels or submit jobs must not reach internal services, networks, or cloud metadata with credentials. A
name is resolved once and all of its addresses are checked. The connection uses one of them, so that a changed DNS
response has no effect.
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
        "168.63.129.16",  # Azure; it looks like a public address
        "192.0.0.192",  # Oracle
    )
)
"""Addresses that hand out cloud credentials; refused despite any setting."""
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
"""IPv6 forms that embed an IPv4 address of any network, and one that Python calls public."""
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
"""Addresses that Python calls public but that the nearest network answers: relays and protocol servers."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All allocated global unicast IPv6 addresses; all others have special purposes, known to Python or not."""
_EXAMPLES: Final = ipaddress.IPv6Network("3fff::/20")
"""Documentation prefix of RFC 9637, unknown to Python 3.11."""
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


class EgressPolicy:
    """Decides which addresses messages may be sent to."""

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
        """Resolve a host to allowed addresses, the first of each family, as some machines lack one.

        Raises:
            NotDelivered: the host has no address, or a refused one, which makes its name untrustworthy.
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
        """Return why a host given as an address is refused; empty if it is allowed, or a name."""
        try:
            return self.refusal(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            return ""

    def refusal(self, address: Address) -> str:
        """Return why an address is refused; empty if it is allowed."""
        hidden = _hidden(address)
        if address in METADATA or hidden in METADATA:
            return "hands out cloud credentials"
        if self.allows(address):
            # A setting that allows a NAT64 prefix means the public internet behind it.
            return self.refusal(hidden) if hidden else ""
        if isinstance(address, ipaddress.IPv6Address) and _is_wrapped(address):
            return "is an IPv4 address in another form"
        if address.is_multicast:
            return "is a multicast address"
        if not address.is_global or address.is_reserved or _is_odd(address):
            return f"is not public; {self._way_out}"
        return ""

    def allows(self, address: Address) -> bool:
        """Whether a setting allows the network of an address."""
        return any(address in network for network in self._allowed)


def networks(text: str) -> tuple[Network, ...]:
    """Parse networks separated by commas, such as `10.1.0.0/16, fd00::/8`.

    Raises:
        BadRequest: one is invalid.
    """
    found: list[Network] = []
    for word in filter(None, map(str.strip, text.split(","))):
        try:
            found.append(ipaddress.ip_network(word))
        except ValueError as error:
            raise BadRequest(
                f"HOLDFAST_NOTIFY_NETWORKS: {word!r} is not a network ({error}); write one such as 10.1.0.0/16"
            ) from error
    return tuple(found)


@functools.cache
def system_tls() -> ssl.SSLContext:
    """Create a TLS context with the system's certificate authorities, which takes 20 ms."""
    return ssl.create_default_context()


def _is_odd(address: Address) -> bool:
    if any(address in network for network in _RELAYS):
        return True
    return address.version == 6 and (address not in _UNICAST or address in _EXAMPLES)


def _is_wrapped(address: ipaddress.IPv6Address) -> bool:
    isatap = int(address) >> 32 & 0xFFFFFFFF in _ISATAP
    return isatap or any(address in network for network in _WRAPPED)


def _hidden(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 one, or None."""
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
