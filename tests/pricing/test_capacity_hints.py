"""Capacity hints from AWS's spot placement scores, as botocore reads its responses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from botocore.stub import Stubber
from holdfast.ports import CapacityHint
from holdfast.pricing.aws import (
    SCORE_REQUESTS,
    SCORES_RETRY,
    SCORES_TTL,
    AwsSpot,
    AwsUnavailable,
    Ec2,
    connect,
)
from holdfast.pricing.capacity_hints import SOURCE, AwsCapacityHints, open_capacity_hints
from support.fakes import FixedClock
from worker.support.s3_servers import credentials

P4D = "p4d.24xlarge"
SCORES = [
    {"Region": "us-east-1", "AvailabilityZoneId": "use1-az1", "Score": 3},
    {"Region": "us-east-1", "AvailabilityZoneId": "use1-az2", "Score": 7},
    {"Region": "eu-west-1", "AvailabilityZoneId": "euw1-az3", "Score": 9},
]
ZONES = [
    {"ZoneName": "us-east-1a", "ZoneId": "use1-az2"},
    {"ZoneName": "us-east-1b", "ZoneId": "use1-az1"},
    {"ZoneName": "us-east-1c", "ZoneId": "use1-az6"},
]


@dataclass
class Aws:
    """EC2 of all regions: a client whose responses are listed in advance."""

    clock: FixedClock
    ec2: Any
    stub: Stubber
    asked: list[str] = field(default_factory=list)

    def connect(self, region: str) -> Ec2:
        self.asked.append(region)
        ec2: Ec2 = self.ec2
        return ec2

    def scores(self, *pages: list[dict[str, Any]], nodes: int = 2, instance: str = P4D) -> None:
        """The next response to a request for scores, in pages."""
        request: dict[str, Any] = {
            "InstanceTypes": [instance],
            "TargetCapacity": nodes,
            "TargetCapacityUnitType": "units",
            "SingleAvailabilityZone": True,
        }
        for number, page in enumerate(pages, 1):
            more = {"NextToken": str(number)} if number < len(pages) else {}
            response = {"SpotPlacementScores": page, **more}
            self.stub.add_response("get_spot_placement_scores", response, dict(request))
            request |= more

    def zones(self) -> None:
        """The next response to a request for zones."""
        response = {"AvailabilityZones": ZONES}
        self.stub.add_response("describe_availability_zones", response, {})


@pytest.fixture
def aws(clock: FixedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name, value in credentials("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    ec2: Any = connect("us-east-1")
    with Stubber(ec2.client) as stub:
        yield Aws(clock, ec2, stub)
    stub.assert_no_pending_responses()


@pytest.fixture
def hints(aws: Aws) -> AwsCapacityHints:
    return AwsCapacityHints(AwsSpot(aws.clock, aws.connect))


def probability(hints: AwsCapacityHints, aws: Aws, place: str, nodes: int = 2) -> float | None:
    hint = hints.score(place, P4D, nodes, aws.clock.now())
    return hint.probability if hint else None


def test_one_request_serves_the_places_of_all_regions(aws: Aws, hints: AwsCapacityHints) -> None:
    aws.scores(SCORES[:2], SCORES[2:])

    found = {
        place: probability(hints, aws, place)
        for place in ("aws", "aws/us-east-1", "aws/us-east-1#2", "aws/eu-west-1", "aws/us-west-2")
    }

    assert found == {
        "aws": 0.9,
        "aws/us-east-1": 0.7,
        "aws/us-east-1#2": 0.7,
        "aws/eu-west-1": 0.9,
        "aws/us-west-2": None,
    }
    assert aws.asked == ["us-east-1"]


def test_zone_has_the_score_of_its_id_in_the_account(aws: Aws, hints: AwsCapacityHints) -> None:
    aws.scores(SCORES)
    aws.zones()

    found = [
        probability(hints, aws, place)
        for place in (
            "aws/us-east-1/us-east-1a",
            "aws/us-east-1/us-east-1b",
            "aws/*/us-east-1b",
            "aws/us-east-1/us-east-1c",
            "aws/us-west-2/us-west-2a",
        )
    ]

    assert found == [0.7, 0.3, 0.3, None, None]


def test_zone_with_an_unknown_id_has_the_score_of_the_region(
    aws: Aws, hints: AwsCapacityHints
) -> None:
    aws.scores(SCORES)
    aws.stub.add_client_error("describe_availability_zones", "UnauthorizedOperation")

    assert probability(hints, aws, "aws/us-east-1/us-east-1b") == 0.7


@pytest.mark.parametrize(
    ("place", "instance_type"),
    [("gcp/us-central1", P4D), ("any", P4D), ("slurm/hpc/gpu", None), ("aws", None), ("aws", "")],
)
def test_aws_is_not_asked_about_other_places(
    aws: Aws, hints: AwsCapacityHints, place: str, instance_type: str | None
) -> None:
    assert hints.score(place, instance_type, 1, aws.clock.now()) is None
    assert aws.asked == []


def test_scores_are_kept_for_hours(aws: Aws, hints: AwsCapacityHints) -> None:
    asked_at = aws.clock.now()
    aws.scores(SCORES)
    hints.score("aws", P4D, 2, asked_at)
    aws.clock.advance(SCORES_TTL.total_seconds() - 1)

    kept = hints.score("aws", P4D, 2, aws.clock.now())
    aws.clock.advance(1)
    aws.scores(SCORES[:1])
    renewed = hints.score("aws", P4D, 2, aws.clock.now())

    assert kept == CapacityHint(probability=0.9, source=SOURCE, as_of=asked_at)
    assert renewed == CapacityHint(probability=0.3, source=SOURCE, as_of=asked_at + SCORES_TTL)


def test_number_of_nodes_is_part_of_the_question(aws: Aws, hints: AwsCapacityHints) -> None:
    aws.scores(SCORES)
    aws.scores(SCORES[:1], nodes=16)

    assert [probability(hints, aws, "aws", nodes) for nodes in (2, 16, 2)] == [0.9, 0.3, 0.9]


def test_refused_request_gives_no_hint_for_an_hour(
    aws: Aws, hints: AwsCapacityHints, caplog: pytest.LogCaptureFixture
) -> None:
    aws.stub.add_client_error("get_spot_placement_scores", "MaxConfigLimitExceeded", "no more")
    refused = [probability(hints, aws, "aws") for _ in range(2)]
    aws.clock.advance(SCORES_RETRY.total_seconds())
    aws.scores(SCORES)

    assert (refused, probability(hints, aws, "aws")) == ([None, None], 0.9)
    [record] = caplog.records
    assert (record.levelname, "no more" in record.message) == ("WARNING", True)


def test_requests_of_a_day_are_limited(
    aws: Aws, hints: AwsCapacityHints, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(SCORE_REQUESTS):
        aws.scores(SCORES, instance=f"type-{number}")
        assert hints.score("aws", f"type-{number}", 2, aws.clock.now())

    for number in range(3):
        assert hints.score("aws", f"more-{number}", 2, aws.clock.now()) is None
    assert hints.score("aws", "type-0", 2, aws.clock.now()) is not None
    assert [record.message for record in caplog.records] == [
        "AWS's spot market is unavailable: only 48 requests for placement scores are sent a day"
    ]
    aws.clock.advance(timedelta(days=1).total_seconds())
    aws.scores(SCORES)
    assert probability(hints, aws, "aws") == 0.9


def test_malformed_scores_are_skipped(aws: Aws, hints: AwsCapacityHints) -> None:
    aws.scores(
        [
            {"Region": "us-east-1", "Score": 9},
            {"Region": "us-east-1", "AvailabilityZoneId": "use1-az1"},
            {"Region": "us-east-1", "AvailabilityZoneId": "use1-az2", "Score": 11},
            {"Region": "us-east-1", "AvailabilityZoneId": "use1-az4", "Score": 2},
        ]
    )

    assert probability(hints, aws, "aws/us-east-1") == 0.2


def test_missing_credentials_give_no_hint(
    clock: FixedClock, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(region: str) -> Ec2:
        raise AwsUnavailable("this service has no AWS credentials", is_quiet=True)

    hints = AwsCapacityHints(AwsSpot(clock, refuse))
    with caplog.at_level(logging.INFO):
        found = [hints.score("aws", f"type-{number}", 1, clock.now()) for number in range(60)]

    assert found == [None] * 60
    assert len(caplog.records) == 1


def test_hints_are_off_without_a_provider(clock: FixedClock) -> None:
    assert open_capacity_hints(None, clock, {}.get) is None
