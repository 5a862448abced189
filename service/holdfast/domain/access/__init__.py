"""Roles, scopes and permissions, and the audit chain."""
