"""The Python SDK: blocking and asynchronous clients, the models of the API, and its errors.

The command line uses the same clients. `docs/howto/python-sdk.md` shows how to use them; `docs/reference/sdk.md` lists all
methods.
"""

from holdfast import errors
from holdfast.client import AsyncClient, Client, NoAnswer, Refused, ServiceUnreachable
from holdfast.client.calls import Call, json_call
from holdfast.client.jobs import JobFilters
from holdfast.sdk.job_files import read_task, upload_code

__all__ = [
    "AsyncClient",
    "Call",
    "Client",
    "JobFilters",
    "NoAnswer",
    "Refused",
    "ServiceUnreachable",
    "errors",
    "json_call",
    "read_task",
    "upload_code",
]
