"""Quotas and the queue of jobs that wait for room in them. Pure."""
