"""Worker configuration from the environment: removal of old checkpoints."""

from __future__ import annotations

import pytest
from holdfast_worker.config import Config


@pytest.mark.parametrize(
    ("env", "keep"),
    [
        ({}, 3),
        ({"HOLDFAST_KEEP": "7"}, 7),
        ({"HOLDFAST_KEEP": "1"}, 2),
        ({"HOLDFAST_KEEP": "7", "HOLDFAST_TIDY": "worker"}, 7),
        ({"HOLDFAST_KEEP": "7", "HOLDFAST_TIDY": "service"}, None),
        ({"HOLDFAST_KEEP": "7", "HOLDFAST_TIDY": ""}, 7),
    ],
)
def test_worker_removes_old_checkpoints_unless_the_service_does(
    env: dict[str, str], keep: int | None
) -> None:
    assert Config.read(env).keep_checkpoints == keep


def test_invalid_tidy_value_is_refused() -> None:
    with pytest.raises(ValueError, match="HOLDFAST_TIDY is 'nobody'; write service or worker"):
        Config.read({"HOLDFAST_TIDY": "nobody"})
