"""Termination notices: from signals, from cloud metadata and from the service."""
