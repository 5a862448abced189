"""Holdfast keeps a training job in place while the spot market pulls."""

from holdfast_worker.protocol.release import version

__version__ = version()
