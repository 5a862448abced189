"""Tokens derived from the service's secret: the token of the workers of one job."""

from __future__ import annotations

import pytest
from holdfast.store.identity.service_tokens import ServiceTokens
from sqlalchemy import Engine


@pytest.fixture
def tokens(engine: Engine) -> ServiceTokens:
    return ServiceTokens(engine, b"secret")


def test_a_worker_reports_for_its_own_job_and_no_other(tokens: ServiceTokens) -> None:
    token = tokens.for_worker("job-1")

    assert tokens.is_worker(token, "job-1")
    assert not tokens.is_worker(token, "job-2")
    assert not tokens.is_worker(token.replace("job-1", "job-2"), "job-2")
    assert not tokens.is_worker("hfw_job-1_é", "job-1")
    assert tokens.access_tokens.find(token) is None


def test_worker_token_is_reproducible_only_with_the_secret(engine: Engine) -> None:
    one, again, stranger = (
        ServiceTokens(engine, b"s"),
        ServiceTokens(engine, b"s"),
        ServiceTokens(engine, b"t"),
    )

    assert one.for_worker("job-1") == again.for_worker("job-1")
    assert not stranger.is_worker(one.for_worker("job-1"), "job-1")
