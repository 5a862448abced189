"""Runs whose training loop belongs to a framework."""
