"""Quotes, price lists, estimates and price history."""
