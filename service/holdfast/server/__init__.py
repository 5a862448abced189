"""Assembles the service and runs it: composition, launcher registry, background tasks, process and signals."""
