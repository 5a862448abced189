"""A reconciler with one job."""

from support.reconciler import new_harness

__all__ = ["new_harness"]
