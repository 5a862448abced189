"""Attempts as records of capacity loss, termination notices, and survival statistics."""
