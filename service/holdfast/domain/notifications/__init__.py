"""Notifications: the events that cause them, their texts, and preferences of channels."""
