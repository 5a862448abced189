"""Hints, failures, run health, timeline, manifests, comparison of runs."""
