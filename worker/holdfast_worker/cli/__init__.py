"""Subcommands of `holdfast-worker`."""
