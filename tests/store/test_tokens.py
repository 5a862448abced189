"""Who may come in: people with a token that was made here, and the workers of one job."""

from __future__ import annotations

import pytest
from histories import DAWN
from holdfast.store.schema import tokens as table
from holdfast.store.tokens import Tokens
from sqlalchemy import Engine, select


@pytest.fixture
def tokens(engine: Engine) -> Tokens:
    return Tokens(engine, b"secret")


def test_a_token_that_was_made_here_lets_in(tokens: Tokens) -> None:
    before = tokens.none_yet()
    first, second = tokens.make("ada", DAWN), tokens.make("bob", DAWN)

    assert (before, tokens.none_yet()) == (True, False)
    assert tokens.is_user(first)
    assert tokens.is_user(second)
    assert first != second


def test_nothing_else_does(tokens: Tokens) -> None:
    token = tokens.make("ada", DAWN)
    head, token_id, _ = token.split("_", 2)

    for other in ("", "_", "hf__", token[:-1], token + "x", f"{head}_{token_id}_", f"{head}_{token_id}", "hf_000000000000_x", token.replace("hf", "hx", 1), "hf_é_ü"):  # fmt: skip
        assert not tokens.is_user(other)


def test_the_secret_of_a_token_is_kept_nowhere(tokens: Tokens, engine: Engine) -> None:
    secret = tokens.make("ada", DAWN).split("_", 2)[2]

    with engine.connect() as connection:
        row = str(connection.execute(select(table)).all())

    assert secret not in row


def test_a_worker_reports_for_its_own_job_and_no_other(tokens: Tokens) -> None:
    token = tokens.for_worker("job-1")

    assert tokens.is_worker(token, "job-1")
    assert not tokens.is_worker(token, "job-2")
    assert not tokens.is_worker(token.replace("job-1", "job-2"), "job-2")
    assert not tokens.is_worker("hfw_job-1_é", "job-1")
    assert not tokens.is_user(token)


def test_a_worker_token_can_be_made_again_and_only_with_the_secret(engine: Engine) -> None:
    one, again, stranger = Tokens(engine, b"s"), Tokens(engine, b"s"), Tokens(engine, b"t")

    assert one.for_worker("job-1") == again.for_worker("job-1")
    assert not stranger.is_worker(one.for_worker("job-1"), "job-1")
