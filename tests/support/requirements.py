"""What a machine lacks for some of the tests."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

ALL = "HOLDFAST_TEST_ALL"
"""Set where all that can be installed was to be, as in `.ci/run`: there a test that cannot run is one that fails."""


def skip_or_fail(what: str) -> NoReturn:
    """Skip a test, with a message that names what to install."""
    if os.environ.get(ALL):
        pytest.fail(f"{what} (and {ALL} is set)", pytrace=False)
    pytest.skip(what)
