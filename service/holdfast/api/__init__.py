"""The HTTP API: routes translate requests and make no decisions."""
