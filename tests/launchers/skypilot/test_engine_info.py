"""Information about SkyPilot's server: cached, and missing clouds are no error."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime

import httpx2
import pytest
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.engine_info import EngineInfoReader
from holdfast.ports import EngineInfo
from support.fakes import FixedClock


class SuccessfulProbe:
    """A successful probe of the admission plugin."""

    async def guarantee(self) -> LaunchGuarantee:
        return LaunchGuarantee.EXACTLY_ONCE

    async def covers_all_requests(self) -> bool:
        return True


@dataclass
class Server:
    """An API server with configured responses."""

    clock: FixedClock
    clouds: list[str] | None = field(default_factory=lambda: ["AWS", "GCP"])
    """None: it responds slowly."""
    ahead: timedelta = timedelta()
    is_there: bool = True
    asked: list[str] = field(default_factory=list)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked.append(path)
        if not self.is_there:
            raise httpx2.ConnectError("refused", request=request)
        date = {"Date": format_datetime(self.clock.now() + self.ahead, usegmt=True)}
        match path:
            case "/api/health":
                return httpx2.Response(200, json={"version": "0.14.1"}, headers=date)
            case "/enabled_clouds":
                assert request.method == "GET"
                return httpx2.Response(200, headers={"X-Skypilot-Request-ID": "r1"})
            case _ if self.clouds is None:
                raise httpx2.ReadTimeout("slow", request=request)
            case _:
                return httpx2.Response(200, json={"return_value": json.dumps(self.clouds)})

    def reader(self) -> EngineInfoReader:
        client = SkyPilotClient(
            "http://sky", user="hf", transport=httpx2.MockTransport(self.answer)
        )
        return EngineInfoReader(client, SuccessfulProbe(), self.clock)


def _read(reader: EngineInfoReader) -> EngineInfo:
    return asyncio.run(reader.read())


def test_healthy_server_is_reported_with_its_clouds(clock: FixedClock) -> None:
    vitals = _read(Server(clock, ahead=timedelta(seconds=7)).reader())

    assert vitals.version == "0.14.1"
    assert vitals.guarantee == "exactly-once"
    assert vitals.waits_for_service
    assert vitals.clouds == ("aws", "gcp")
    assert vitals.clock_skew_s == pytest.approx(7, abs=1), "HTTP dates have whole seconds"


def test_clouds_are_cached_unless_empty(clock: FixedClock) -> None:
    server = Server(clock, clouds=[])
    reader = server.reader()
    nowhere = _read(reader).clouds
    server.clouds = ["AWS"]
    somewhere = _read(reader).clouds
    server.clouds = ["GCP"]
    still = _read(reader).clouds
    clock.advance(180)

    later = _read(reader).clouds

    assert (nowhere, somewhere, still, later) == ((), ("aws",), ("aws",), ("gcp",))
    assert server.asked.count("/enabled_clouds") == 3


def test_server_with_slow_cloud_check_is_reachable(clock: FixedClock) -> None:
    vitals = _read(Server(clock, clouds=None).reader())

    assert vitals.version == "0.14.1"
    assert vitals.clouds is None


def test_unreachable_server_raises_launcher_unreachable(clock: FixedClock) -> None:
    with pytest.raises(LauncherUnreachable, match="did not respond"):
        _read(Server(clock, is_there=False).reader())
