"""Sweeps: one job file with several values of its parameters. Pure."""
