"""The addresses to which notifications may be sent."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import pytest
from holdfast.egress_policy import EgressPolicy, networks
from holdfast.errors import BadRequest, NotDelivered

PUBLIC = ["93.184.215.14", "1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:82a::200e"]
REFUSED = [
    # This host, and unspecified addresses
    *("127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0.1.2.3", "::1", "::"),
    # Private
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.1"),
    *("fc00::1", "fd12:3456:789a::1", "fec0::1"),
    # Link-local and metadata
    *("169.254.0.1", "169.254.169.254", "169.254.170.2", "169.254.169.253", "fe80::1", "fe80::1%eth0"),
    *("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    # Carrier-grade NAT
    *("100.64.0.1", "100.127.255.254"),
    # Multicast and broadcast
    *("224.0.0.1", "239.255.255.255", "232.1.1.1", "ff02::1", "ff0e::1", "255.255.255.255"),
    # Documentation, benchmarks and reserved
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "240.0.0.1", "192.0.0.1"),
    *("2001:db8::1", "100::1", "2001:2::1", "2001:10::1", "3fff::1", "5f00::1"),
    # IPv4 in other forms: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP; also of public addresses
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1"),
    *("::127.0.0.1", "::8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::", "2002:808:808::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    # Relays and servers of network protocols
    *("192.88.99.1", "192.88.99.255", "192.52.193.1", "192.31.196.1", "192.175.48.1", "2620:4f:8000::1"),
    *("2001:1::1", "2001:3::1", "2001:4:112::1", "2001:20::1", "2001:1ff:ffff::1"),
    *("2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1", "fe80::5efe:192.168.0.1"),
]  # fmt: skip


def answering(*answers: str | Sequence[str]) -> EgressPolicy:
    """Return a policy whose name server gives these answers in turn."""
    left = list(answers)

    def resolve(host: str, port: int) -> Sequence[str]:
        result = left.pop(0)
        return [result] if isinstance(result, str) else result

    return EgressPolicy(resolve=resolve)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_picked(text: str) -> None:
    assert answering(text).pick("example.com", 443) == [text]


@pytest.mark.parametrize("text", REFUSED)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(NotDelivered, match=r"^evil\.example is refused: "):
        answering(text).pick("evil.example", 443)


@pytest.mark.parametrize("text", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "127.0.0.1", "localhost"])  # fmt: skip
def test_other_spellings_of_loopback_are_refused(text: str) -> None:
    """The real resolver parses them; its result is checked."""
    with pytest.raises(NotDelivered, match="is refused: "):
        EgressPolicy().pick(text, 80)


def test_name_with_one_refused_address_is_refused() -> None:
    with pytest.raises(NotDelivered, match=r"10\.0\.0\.1 is not public"):
        answering(["8.8.8.8", "10.0.0.1"]).pick("evil.example", 443)


def test_invalid_name_is_refused_with_a_message() -> None:
    def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(NotDelivered, match=r"nowhere\.example has no address"):
        EgressPolicy(resolve=resolve).pick("nowhere.example", 443)
    with pytest.raises(NotDelivered, match="has no address"):
        EgressPolicy().pick(f"{'x' * 64}.example", 443)
    with pytest.raises(NotDelivered, match="has no address"):
        answering([]).pick("nowhere.example", 443)


def test_setting_permits_one_network_only() -> None:
    policy = EgressPolicy(networks("10.1.0.0/16, fd00::/8,"))

    assert policy.refusal(ipaddress.ip_address("10.1.2.3")) == ""
    assert policy.refusal(ipaddress.ip_address("fd12::1")) == ""
    assert policy.refusal(ipaddress.ip_address("10.2.0.1")) != ""
    assert policy.refusal(ipaddress.ip_address("127.0.0.1")) != ""


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"]
)
def test_no_setting_permits_metadata_addresses(text: str) -> None:
    policy = EgressPolicy(networks("0.0.0.0/0, ::/0"))

    assert policy.refusal(ipaddress.ip_address(text)) == "hands out cloud credentials"


def test_allowed_nat64_prefix_reaches_public_addresses_only() -> None:
    policy = EgressPolicy(networks("64:ff9b::/96"))

    assert policy.refusal(ipaddress.ip_address("64:ff9b::808:808")) == ""
    assert policy.refusal(ipaddress.ip_address("64:ff9b::7f00:1")) != ""
    assert policy.refusal(ipaddress.ip_address("64:ff9b::a00:1")) != ""


def test_first_address_of_each_family_is_picked() -> None:
    found = ["2606:4700:4700::1111", "2606:4700:4700::1001", "1.1.1.1", "1.0.0.1"]

    assert answering(found).pick("example.com", 443) == ["2606:4700:4700::1111", "1.1.1.1"]


def test_invalid_network_is_named() -> None:
    with pytest.raises(
        BadRequest, match=r"^HOLDFAST_NOTIFY_NETWORKS: '10\.0\.0\.1/8' is not a network"
    ):
        networks("10.0.0.1/8")
