"""The command line: a client of the API, and the place where a service is started."""

from holdfast.cli.app import main

__all__ = ["main"]
