"""Plant mistakes one by one and print which test notices each; exit 1 if one survives."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from planted_mistakes.access import ACCESS_MISTAKES
from planted_mistakes.billing import BILLING_MISTAKES
from planted_mistakes.checkpoints import (
    CHECKPOINT_MISTAKES,
    MEMORY_MISTAKES,
    RETENTION_MISTAKES,
)
from planted_mistakes.jobs import JOB_MISTAKES, STORE_MISTAKES
from planted_mistakes.mistake import Mistake, TestRun, Tier, run_planted, run_tests
from planted_mistakes.worker import WORKER_MISTAKES

MISTAKES = (
    *JOB_MISTAKES,
    *STORE_MISTAKES,
    *BILLING_MISTAKES,
    *CHECKPOINT_MISTAKES,
    *MEMORY_MISTAKES,
    *RETENTION_MISTAKES,
    *WORKER_MISTAKES,
    *ACCESS_MISTAKES,
)


def main(names: Sequence[str], jobs: int) -> int:
    """Check the mistakes with these names, or all; return the exit code."""
    known = {mistake.name: mistake for mistake in MISTAKES}
    if unknown := set(names) - known.keys():
        print(f"unknown mistakes: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    named = [known[name] for name in names] if names else list(MISTAKES)
    chosen = [mistake for mistake in named if not mistake.equivalent]
    if not _pass_unplanted(chosen):
        return 1
    survivors = 0
    width = max(len(mistake.name) for mistake in named)
    with ThreadPoolExecutor(jobs) as pool:
        for mistake, run in zip(chosen, pool.map(run_planted, chosen), strict=True):
            survivors += not run.is_caught
            print(f"{mistake.name:{width}}  {_result(run)}", flush=True)
    for mistake in named:
        if mistake.equivalent:
            print(f"{mistake.name:{width}}  equivalent: {mistake.equivalent}")
    print(f"{len(chosen) - survivors} of {len(chosen)} mistakes are caught")
    return 1 if survivors else 0


def _pass_unplanted(mistakes: Sequence[Mistake]) -> bool:
    """Whether the tests pass without the mistakes; otherwise their failure proves nothing."""
    for tier in Tier:
        tests = dict.fromkeys(test for each in mistakes if each.tier is tier for test in each.tests)
        if not tests:
            continue
        run = run_tests(tuple(tests), tier)
        if run.exit_code:
            print(run.output, file=sys.stderr)
            print("these tests fail without any mistake", file=sys.stderr)
            return False
    return True


def _result(run: TestRun) -> str:
    if run.is_caught:
        return f"caught by {', '.join(run.failed)}"
    if run.exit_code:
        return f"SURVIVED: the tests did not run (exit code {run.exit_code})\n{run.output}"
    return "SURVIVED"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="planted_mistakes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mistakes to plant (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mistakes at a time")
    options = parser.parse_args()
    sys.exit(main(options.names, options.jobs))
