"""Mistakes in bills, prices and budgets."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

S: Final = "service/holdfast/"
BILLING: Final = "tests/domain/billing/"

BILLING_MISTAKES: Final = (
    Mistake(
        name="month-pays-for-the-month-before",
        file=f"{S}store/budgets.py",
        old="else_=-run_up(begin_ms))",
        new="else_=micros)",
        tests=("tests/store/test_budgets.py",),
    ),
    Mistake(
        name="month-pays-for-the-whole-account",
        file=f"{S}store/budgets.py",
        old="paid += account.paid_micros_in(month, now)",
        new="paid += account.paid_micros_by(now)",
        tests=("tests/store/test_budgets.py",),
    ),
    Mistake(
        name="spent-budget-admits-new-jobs",
        file=f"{S}store/budgets.py",
        old="_STARTING_EVENTS: Final = (Submitted, ResumeRequested, LaunchRequested)",
        new="_STARTING_EVENTS: Final = (ResumeRequested, LaunchRequested)",
        tests=("tests/store/test_budgets.py",),
    ),
    Mistake(
        name="removed-jobs-cost-nothing",
        file=f"{S}store/budgets.py",
        old="in ((jobs, is_ours), (removed_jobs, true())):",
        new="in ((jobs, is_ours),):",
        tests=("tests/store/test_job_removal.py",),
    ),
    Mistake(
        name="raised-budget-seen-late",
        file=f"{S}controller/reconciler.py",
        old="if known and not is_blocked and now",
        new="if known and now",
        tests=("tests/controller/test_limit_enforcement.py",),
    ),
    Mistake(
        name="larger-grace-instead-of-sum",
        file=f"{S}domain/budgets.py",
        old="self.committed_micros + grace_micros(more_per_hour)",
        new="max(self.committed_micros, grace_micros(more_per_hour))",
        tests=("tests/domain/test_budgets.py",),
    ),
    Mistake(
        name="spent-budget-blocks-next-month",
        file=f"{S}domain/budgets.py",
        old="if self.was_reached and self.at >= Month.containing(now).start:",
        new="if self.was_reached:",
        tests=("tests/domain/test_budgets.py",),
    ),
    Mistake(
        name="balance-carried-into-next-month",
        file=f"{S}domain/budgets.py",
        old="(self.at, self.spent_micros) if self.at >= start else (start, 0)",
        new="(self.at, self.spent_micros)",
        tests=("tests/domain/test_budgets.py",),
    ),
    Mistake(
        name="seconds-billed-instead-of-milliseconds",
        file=f"{S}domain/billing/rate.py",
        old="(at_ms - begin_ms) * rate // MS_PER_HOUR for",
        new="(at_ms - begin_ms) // 1000 * rate // 3600 for",
        tests=(f"{BILLING}test_bill_histories.py",),
    ),
    Mistake(
        name="amount-rounded-up",
        file=f"{S}domain/billing/rate.py",
        old="return self.accrue(begin_ms, end_ms) // MS_PER_HOUR",
        new="return -(-self.accrue(begin_ms, end_ms) // MS_PER_HOUR)",
        tests=(f"{BILLING}test_running_cost.py",),
    ),
    Mistake(
        name="price-change-replaces-first-price",
        file=f"{S}domain/billing/rate.py",
        old="if at_ms <= self.steps[0][0]:",
        new="if at_ms < self.steps[0][0]:",
        tests=(f"{BILLING}test_rate.py",),
    ),
    Mistake(
        name="known-price-reported-again",
        file=f"{S}domain/pricing/price_history.py",
        old="if not is_current or change.at in known or is_same:",
        new="if not is_current or is_same:",
        tests=("tests/background/test_price_watcher.py",),
    ),
    Mistake(
        name="price-change-after-the-end-recorded",
        file=f"{S}domain/pricing/price_history.py",
        old="attempt.ended_at is None or change.at < attempt.ended_at",
        new="attempt.ended_at is None or change.at <= attempt.ended_at",
        tests=("tests/background/test_price_watcher.py",),
    ),
    Mistake(
        name="overlapping-attempts-billed-twice",
        file=f"{S}domain/billing/bill.py",
        old="start = max(to_ms(attempt.ready.at), free_since)",
        new="start = to_ms(attempt.ready.at)",
        tests=(f"{BILLING}test_running_cost.py",),
    ),
    Mistake(
        name="price-of-one-group-applied-to-all",
        file=f"{S}domain/billing/bill.py",
        old="if change.group == number:",
        new="if change.group <= number:",
        tests=(f"{BILLING}test_bill_histories.py",),
    ),
    Mistake(
        name="running-cost-counts-overlap-twice",
        file=f"{S}domain/billing/running_cost.py",
        old="since=max(at, self.free_since), tariffs=tariffs",
        new="since=at, tariffs=tariffs",
        tests=(f"{BILLING}test_running_cost.py",),
    ),
    Mistake(
        name="settled-month-overwritten",
        file=f"{S}domain/billing/running_cost.py",
        old="months[str(month)] += meter",
        new="months[str(month)] = meter",
        tests=(f"{BILLING}test_running_cost.py",),
    ),
    Mistake(
        name="current-price-is-the-first",
        file=f"{S}domain/billing/running_cost.py",
        old="sum(tariff.newest_micros_per_hour for tariff in",
        new="sum(tariff.steps[0][1] for tariff in",
        tests=(f"{BILLING}test_running_cost.py",),
    ),
    Mistake(
        name="late-price-refused-too-early",
        file=f"{S}domain/billing/running_cost.py",
        old="any(meter.attempt == attempt for meter in self.meters)",
        new="any(meter.attempt == attempt for meter in self.meters[-1:])",
        tests=(f"{BILLING}test_bill_histories.py",),
    ),
    Mistake(
        name="preemption-after-exactly-an-hour-is-free",
        file=f"{S}domain/billing/provider_rules.py",
        old="lasted_ms >= terms.free_if_reclaimed_within_ms",
        new="lasted_ms > terms.free_if_reclaimed_within_ms",
        tests=(f"{BILLING}test_provider_rules.py",),
    ),
    Mistake(
        name="minimum-charge-per-attempt",
        file=f"{S}domain/billing/provider_rules.py",
        old="missing_ms = terms.minimum_ms - (last.end_ms - begin_ms)",
        new="missing_ms = terms.minimum_ms - (last.end_ms - last.begin_ms)",
        tests=(f"{BILLING}test_provider_rules.py",),
    ),
    Mistake(
        name="extended-bill-without-unmeasured-time",
        file=f"{S}domain/billing/incremental_bill.py",
        old="account.on_demand_micros + useful + unmeasured,",
        new="account.on_demand_micros + useful,",
        tests=(f"{BILLING}test_incremental_bill.py",),
    ),
    Mistake(
        name="last-phase-not-split-at-midnight",
        file=f"{S}domain/billing/allocation.py",
        old="if not (is_whole and spans[-1] == item.spans[-1]):",
        new="if not is_whole:",
        tests=(f"{BILLING}test_rate.py",),
    ),
    Mistake(
        name="rebuilt-rollup-added-twice",
        file=f"{S}store/billing/rollup_cache.py",
        old="return more if before.jobs + more == now.jobs else None",
        new="return more",
        tests=("tests/store/billing/test_rollup_cache.py",),
    ),
    Mistake(
        name="restored-step-not-lost",
        file=f"{S}domain/attempts.py",
        old="limit = min(limit, start.training.step)",
        new="limit = max(limit, start.training.step)",
        tests=(f"{BILLING}test_bill.py",),
    ),
    Mistake(
        name="unusable-checkpoint-counts-as-saved",
        file=f"{S}domain/attempts.py",
        old=" if c.checkpoint not in unusable)",
        new=")",
        tests=(f"{BILLING}test_bill.py",),
    ),
    Mistake(
        name="restarted-ranks-end-with-the-attempt",
        file=f"{S}domain/billing/phases.py",
        old="spans += _spans_of_start(ranks, steps, start, ended)",
        new="spans += _spans_of_start(ranks, steps, start, end)",
        tests=(f"{BILLING}test_bill_reference.py",),
    ),
    Mistake(
        name="restart-of-ranks-loses-no-steps",
        file=f"{S}domain/attempts.py",
        old="sources = [*self.checkpoints, self.training, self.worker_exit, self.notice, self.restart]",
        new="sources = [*self.checkpoints, self.training, self.worker_exit, self.notice]",
        tests=(f"{BILLING}test_bill.py",),
    ),
)
