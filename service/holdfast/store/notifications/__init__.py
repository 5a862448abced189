"""Channels of notifications, and messages on their way."""
