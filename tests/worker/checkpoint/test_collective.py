"""A store error of one rank is raised on all ranks, with any message."""

from __future__ import annotations

import pytest
import torch
from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage.base import StoreError, StoreUnreachable


@pytest.mark.parametrize(
    ("error", "message"),
    [(StoreUnreachable("no answer"), "no answer"), (StoreUnreachable(), "Unreachable")],
)
def test_store_error_without_a_message_is_still_raised(error: StoreError, message: str) -> None:
    with (
        pytest.raises(StoreError, match=message),
        fail_together(ProcessGroup(0, 1, torch.device("cpu"), None)),
    ):
        raise error
