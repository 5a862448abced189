"""The command line: a client of the API that can also start the service."""

from holdfast.cli.app import main

__all__ = ["main"]
