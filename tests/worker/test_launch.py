"""`holdfast-worker run`: what it starts, what it passes on, what it delivers, and what it says in the end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker.stage import LESSON, Stage, free_port
from worker.test_spool import Service

from holdfast_worker.echo import Echo
from holdfast_worker.rundir import Failure, Left, RunDir
from holdfast_worker.topology import Topology
from holdfast_worker.wire import Exit, ReportKind

STRANGER = str(Path(__file__).parents[2] / "examples" / "stranger.py")
...
