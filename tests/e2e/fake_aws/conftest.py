"""The shared fake cloud, or the reason why it is unavailable."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.fake_aws import namespace
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import HoldfastService, start_gated
from e2e.fake_aws.jobs import cancel_all

HERE = Path(__file__).parent
LONGEST_TEST_S = 1800
NOT_HERE = (
    "did not run: these tests need the network namespace of the fake cloud;"
    " run them with `make e2e`, as root, with Debian's packages"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests outside of the namespace; allow for the boot time of machines inside of it."""
    is_inside = namespace.is_inside()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_S))
            if not is_inside:
                item.add_marker(pytest.mark.skip(reason=NOT_HERE))


@pytest.fixture(scope="session")
def the_cloud() -> Iterator[FakeAws]:
    """The one cloud of this session."""
    cloud = FakeAws()
    start_gated(cloud)
    yield cloud
    cloud.stop()


@pytest.fixture
def aws(the_cloud: FakeAws) -> Iterator[FakeAws]:
    """A cloud without jobs and instances, with capacity everywhere and a responding API server."""
    yield the_cloud
    try:
        the_cloud.restore_api_server()
        cancel_all(the_cloud)
    finally:
        the_cloud.reset()


@pytest.fixture
def service(aws: FakeAws, tmp_path: Path) -> Iterator[HoldfastService]:
    """Holdfast with that cloud."""
    service = HoldfastService(tmp_path, aws.paths)
    service.start()
    yield service
    if service.process:
        service.end(signal.SIGTERM)
