"""The client of the API: `holdfast.sdk` for programs, and what the command line uses."""

from holdfast.client.connection import TIMEOUT_S, AsyncClient, Client
from holdfast.client.event_stream import StreamMessage
from holdfast.client.refusals import NoAnswer, Refused, ServiceUnreachable

__all__ = [
    "TIMEOUT_S",
    "AsyncClient",
    "Client",
    "NoAnswer",
    "Refused",
    "ServiceUnreachable",
    "StreamMessage",
]
