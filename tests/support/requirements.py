"""Skip or fail tests whose requirements the machine lacks."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

ALL = "HOLDFAST_TEST_ALL"
"""Environment variable that makes tests with missing programs fail instead of being skipped.

Set where all optional programs are installed, as in `.ci/run`.
"""


def skip_or_fail(what: str) -> NoReturn:
    """Skip the test, or fail it in a full run, with a message that names what to install."""
    if os.environ.get(ALL):
        pytest.fail(f"{what} (and {ALL} is set)", pytrace=False)
    pytest.skip(what)
