"""Parsing of Slurm's host lists."""

from __future__ import annotations

import pytest
from holdfast_worker.topology.slurm import expand_hosts


@pytest.mark.parametrize(
    ("hosts", "expanded"),
    [
        ("login", ["login"]),
        ("n[1-3,07],login", ["n1", "n2", "n3", "n07", "login"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
    ],
)
def test_host_list_is_expanded(hosts: str, expanded: list[str]) -> None:
    assert expand_hosts(hosts) == expanded


@pytest.mark.parametrize(
    "hosts", ["", ",a", "a,", "a,,b", "a b", "n[1-", "n1]", "n[3-1]", "n[a-b]", "n[1-999999999]"]
)
def test_invalid_host_list_is_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="is not a list of hosts"):
        expand_hosts(hosts)
