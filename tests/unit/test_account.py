"""The account that guards read never runs ahead of the bill, nor behind it, whatever the clocks of launchers say."""

from __future__ import annotations

from histories import at, finished, launched, lost, ready, submitted
from holdfast.domain.events import Event, Finished
from holdfast.domain.ledger import bill
from holdfast.domain.lifecycle import fold
from hypothesis import given
from hypothesis import strategies as st

MOMENTS = st.lists(
    st.tuples(st.integers(0, 500_000), st.integers(0, 500_000), st.integers(1, 10**11)), max_size=6
)


@given(MOMENTS, st.booleans(), st.integers(0, 900_000))
def test_the_account_is_that_of_the_bill_though_times_overlap(
    placements: list[tuple[int, int, int]], stands: bool, now_ms: int
) -> None:
    log: list[Event] = [submitted(100), launched(100)]
    for attempt, (ready_ms, lost_ms, micros) in enumerate(placements, 1):
        log += [ready(ready_ms / 1000, attempt=attempt, micros=micros)]
        log += [lost(lost_ms / 1000, attempt=attempt)]
    if stands and placements:
        del log[-1]
    now = at(now_ms / 1000)

    for story in (log, [*log, finished(now_ms / 1000)]):
        account, billed = fold("job-1", story).account, bill(story, {}, now)
        assert account.paid_micros_by(now) == billed.paid_micros
        assert account.node_ms_by(now) == billed.ms.total
        ended = isinstance(story[-1], Finished)
        assert not ended or account.paid_micros == billed.paid_micros


def test_no_moment_is_paid_for_twice() -> None:
    overlapping = [ready(0), lost(10), ready(5, attempt=2), lost(12, attempt=2)]

    one = fold("job-1", [submitted(), launched(), *overlapping])

    assert one.account.node_ms == 12_000
    assert one.account.paid_micros == 12_000
