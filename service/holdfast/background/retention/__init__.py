"""Tidying up checkpoint stores: what is not to be kept goes, and what went is written down beside its job.

book       what is remembered of a job
stock      what a store holds, looked through
removal    the removal of what a plan names, in an order that may be cut off anywhere
janitor    whose turn it is, and what to do about a store that cannot be used
"""

from holdfast.background.retention.collector import CheckpointCollector, RetentionSettings

__all__ = ["CheckpointCollector", "RetentionSettings"]
