"""Checkpoint retention: deletes old checkpoints from stores and records the deletions.

`inventory` scans a store, `deletion` deletes what a plan lists in an order that tolerates interruption, and
`collector` schedules the jobs.
"""

from holdfast.background.retention.collector import CheckpointCollector, RetentionSettings

__all__ = ["CheckpointCollector", "RetentionSettings"]
