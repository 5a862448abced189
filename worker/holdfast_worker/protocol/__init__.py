"""The protocol between worker and service: environment, reports, policies and checkpoint keys. Standard library only."""
