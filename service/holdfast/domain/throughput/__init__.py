"""Throughput of a job, and when it is expected to end."""
