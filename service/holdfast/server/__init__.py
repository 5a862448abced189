"""Assembles the service and runs it.

Composition, launcher registry, background tasks, process and signals.
"""
