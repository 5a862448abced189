"""Holdfast keeps a training job in place while the spot market pulls."""

from importlib.metadata import version

__version__ = version("holdfast")
