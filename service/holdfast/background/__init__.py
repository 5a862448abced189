"""Periodic tasks beside the controller. Each is idempotent and can be cancelled."""
