"""A drill is a termination notice to its node, once, unless the node ends at once."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from holdfast_worker.clock import now
from holdfast_worker.preemption.notice_sources import NoticeSources
from holdfast_worker.watchdog.node_drills import Drill


def test_drill_with_notice_is_one_notice(capsys: pytest.CaptureFixture[str]) -> None:
    sources = NoticeSources(None, None)
    before = now()

    sources.drill.begin(time.monotonic() + 60)
    notice = sources.notice()

    assert notice
    assert notice.deadline
    assert before + timedelta(seconds=59) < notice.deadline <= now() + timedelta(seconds=60)
    assert sources.notice() is None
    assert "as if its machine were preempted" in capsys.readouterr().err


def test_drill_without_notice_is_none() -> None:
    sources = NoticeSources(None, None)

    sources.drill.begin(time.monotonic())

    assert sources.notice() is None


def test_first_drill_stands() -> None:
    drill = Drill()
    first_s = time.monotonic() + 60

    drill.begin(first_s)
    drill.begin(first_s + 60)

    assert drill.end_s == first_s


def test_node_goes_on_until_its_drill_is_due() -> None:
    drill = Drill()

    drill.end_if_due()
    drill.begin(time.monotonic() + 60)
    drill.end_if_due()

    assert drill.end_s is not None


def test_nodes_without_reports_receive_no_requests() -> None:
    assert [*NoticeSources(None, None).requested_drills()] == []
