"""ASGI middleware: request limits, timing, and the fast path of reports."""
