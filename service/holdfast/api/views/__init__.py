"""Conversion of domain objects to schemas."""
