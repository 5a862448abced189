"""Reads the recording that the local market replays, and remembers when the replay began."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.planning.recorded_places import recording_of
from holdfast.domain.planning.traces import check_together, parse_prices
from holdfast.domain.simulation.recorded_market import MarketRecording
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import BadRequest
from holdfast.host.trace_files import PRICES_FILE, read_text, read_traces
from holdfast.ports import Clock
from holdfast.server.home_dir import read_or_empty, write_once
from holdfast.settings import SimulatedMarketSettings

log = logging.getLogger(__name__)


def market_parameters(
    market: SimulatedMarketSettings, home: Path, clock: Clock
) -> MarketParameters:
    """The market of a service with the directory `home`.

    Raises:
        BadRequest: The recording that it is to replay cannot be used.
    """
    folder = market.market_trace
    return MarketParameters(
        seed=market.seed,
        provision_s=market.provision_s,
        denial_rate=market.denial_rate,
        mtbf_s=market.mtbf_s,
        notice_s=market.notice_s,
        spot_micros=round(market.spot_usd_per_hour * MICROS_PER_USD),
        on_demand_micros=round(market.on_demand_usd_per_hour * MICROS_PER_USD),
        on_demand_denial_rate=market.on_demand_denial_rate,
        on_demand_wait_s=market.on_demand_wait_s,
        recording=None if folder is None else open_recording(folder, home, clock.now()),
    )


def open_recording(folder: Path, home: Path, now: datetime) -> MarketRecording:
    """The recording in a folder, which begins when a service with this `home` first opens it.

    Raises:
        BadRequest: The folder has no traces, or they cannot be replayed together.
    """
    if not folder.is_dir():
        raise BadRequest(f"market trace {folder}: not a directory; name one with recorded traces")
    traces = [*read_traces([folder])]
    check_together(traces, together=True)
    file, prices = folder / PRICES_FILE, None
    if file.exists():
        prices = parse_prices(read_text(file), traces, str(file))
    recording = recording_of(traces, prices, now)
    recording = replace(recording, start=_start(recording, home))
    log.info(
        "the local market replays %d zones of %s from %s to %s",
        len(recording.zones),
        folder,
        recording.start.isoformat(timespec="seconds"),
        recording.begin(recording.ticks).isoformat(timespec="seconds"),
    )
    return recording


def _start(recording: MarketRecording, home: Path) -> datetime:
    """When the replay of this recording began here; now if it begins now.

    Replicas with the same directory agree, and a changed recording starts from its beginning.
    """
    content = json.dumps([asdict(zone) for zone in recording.zones] + [recording.gap_s])
    digest = hashlib.sha256(content.encode()).hexdigest()
    file = home / f"market-start-{digest[:16]}"
    write_once(file, recording.start.isoformat())
    return datetime.fromisoformat(read_or_empty(file))
