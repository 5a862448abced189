"""Hints, known failures, run health, timeline, run diff, manifests, and the equivalence of two runs."""
