"""`holdfast-worker audit`: show the transports of NCCL from its logs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast_worker.console import log_info, print_line
from holdfast_worker.distributed.nccl_transport import NcclTransport, advice, parse_logs
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json

LOG_PATTERNS: Final = ("nccl/*.log", "ranks/*.log", "*.log", "*.out", "*.txt")
"""Files with output of NCCL in a run directory, or in any directory of logs."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options of `holdfast-worker audit`."""
    parser.add_argument(
        "places",
        nargs="+",
        metavar="PLACE",
        type=Path,
        help="a log of a run with NCCL_DEBUG=INFO, or a run directory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(do=_audit)


def _audit(options: argparse.Namespace) -> int:
    try:
        found = parse_logs(_read_lines(options.places))
    except OSError as error:
        log_info(f"{error.strerror}: {error.filename}")
        return Exit.USAGE
    if not found.paths and not found.network:
        log_info(
            "no output of NCCL found: run with NCCL_DEBUG=INFO, on GPUs, and with more than one rank"
        )
        return Exit.FAILED
    print_line(json.dumps(as_json(found), indent=2) if options.json else as_text(found))
    return Exit.DONE


def as_json(found: NcclTransport) -> Mapping[str, Json]:
    """The transports and advice as JSON."""
    return {
        "version": found.version,
        "within": found.within,
        "between": found.between,
        "is_direct": found.is_direct,
        "interfaces": [*found.interfaces],
        "devices": [*found.devices],
        "nodes": found.nodes,
        "channels": {path.value: count for path, count in sorted(found.paths.items())},
        "environment": {**found.environment},
        "advice": [*advice(found)],
    }


def as_text(found: NcclTransport) -> str:
    """The transports and advice as text; advice comes last."""
    direct = " with GPUDirect RDMA" if found.is_direct else ""
    rows = {
        "NCCL": found.version,
        "within nodes": found.within,
        "between nodes": f"{found.between}{direct}" if found.between else None,
        "interfaces": ", ".join(found.interfaces),
        "devices": ", ".join(found.devices),
        "channels": ", ".join(f"{count} by {path}" for path, count in sorted(found.paths.items())),
        "set": ", ".join(f"{name}={value}" for name, value in sorted(found.environment.items())),
    }
    lines = [f"{label:<14} {value}" for label, value in rows.items() if value]
    return "\n".join([*lines, *(advice(found) or ["no slow transport found"])])


def _read_lines(places: Sequence[Path]) -> Iterator[str]:
    """The lines of all logs in these files and directories.

    Raises:
        OSError: a file cannot be read.
    """
    for place in places:
        files = [file for form in LOG_PATTERNS for file in sorted(place.glob(form))]
        for file in files if place.is_dir() else [place]:
            with file.open(errors="replace") as log:
                yield from log
