"""Limits overridden by `holdfast submit`, and the line printed before the submission."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from holdfast.api.schemas.jobs import LaunchEstimateOut
from holdfast.cli.jobs import estimate_line
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.errors import BadJobFile
from holdfast.pricing import open_catalog
from holdfast.submission.launch_estimate import estimate_launch
from support.fakes import FixedClock

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def line(resources: str, limits: str = "", nodes: int = 1, now: datetime = NOW) -> str:
    """The line printed before the submission of a job with these resources."""
    text = f"run: x\nnum_nodes: {nodes}\nresources: {{{resources}}}\nholdfast: {{limits: {{{limits}}}}}\n"
    spec = parse_job_file(text).spec
    estimate = estimate_launch(spec, open_catalog((), FixedClock(now), asks_aws=False), now)
    return estimate_line(
        spec.engine, LaunchEstimateOut.model_validate(estimate, from_attributes=True)
    )


@pytest.mark.parametrize(
    ("resources", "limits", "nodes", "text"),
    [
        # ruff: noqa: RUF001
        ("infra: aws/us-east-1, accelerators: A100:8", "max_cost_usd: 50", 2,
         "SkyPilot, aws us-east-1, 2 × p4d.24xlarge spot ~$4.93/h; maximum $50.00"),
        ("infra: aws/us-east-1, instance_type: p4d.24xlarge, use_spot: false", "", 1,
         "SkyPilot, aws us-east-1, 1 × p4d.24xlarge on-demand ~$21.96/h; no maximum cost"),
        ("accelerators: A100:8", "", 1,
         "SkyPilot, aws us-east-1 (cheapest), 1 × p4d.24xlarge spot ~$2.47/h; no maximum cost"),
        ("accelerators: B200:8", "", 1, "SkyPilot, any cloud, 1 × B200:8 spot, price unknown; no maximum cost"),
        ("infra: gcp, cpus: 8", "", 3, "SkyPilot, gcp, 3 nodes spot, price unknown; no maximum cost"),
        ("infra: local", "max_cost_usd: 1.5", 2, "local, 2 nodes, nothing is billed; maximum $1.50"),
        ("infra: slurm/gpu, accelerators: A100:8", "", 1, "Slurm, 1 × A100:8, nothing is billed; no maximum cost"),
    ],
)  # fmt: skip
def test_line_states_launcher_place_price_and_maximum(
    resources: str, limits: str, nodes: int, text: str
) -> None:
    assert line(resources, limits, nodes) == text


def test_cheapest_alternative_is_shown_with_old_prices_marked() -> None:
    both = "any_of: [{accelerators: H100:8}, {accelerators: A100:8}], infra: aws"

    assert line(both) == line("infra: aws, accelerators: A100:8")
    assert line(both.replace("any_of", "ordered")) == line("infra: aws, accelerators: H100:8")
    assert "/h (price older than 90 days)" in line(both, now=datetime(2027, 11, 1, tzinfo=UTC))


def test_limits_override_those_of_the_file() -> None:
    text = (
        "run: x\nresources: {infra: local}\nholdfast: {limits: {max_cost_usd: 5, max_wait: 2h}}\n"
    )

    limits = parse_job_file(
        text, Overrides(limits={"max_cost_usd": "9", "deadline": "48h"})
    ).spec.holdfast.limits
    without = parse_job_file(text, Overrides(limits={"max_cost_usd": None})).spec.holdfast.limits

    assert (str(limits.max_cost_usd), limits.deadline, limits.max_wait) == ("9", "48h", "2h")
    assert without.max_cost_usd is None
    with pytest.raises(BadJobFile, match="#/holdfast/limits/max_cost_usd: 'much' is not an amount"):
        parse_job_file(text, Overrides(limits={"max_cost_usd": "much"}))
