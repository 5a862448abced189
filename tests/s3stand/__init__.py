"""A stand-in for S3: objects in memory, as fast as the loopback, and as unreliable as a test asks for.

    with s3stand.in_thread() as stand:  # or in_process(), for benchmarks
        client = boto3.client("s3", endpoint_url=stand.endpoint)
        stand.fault("error", code="SlowDown", on="PutObject", key="*/commits/*", count=2)

stand        the handle, and the two ways to have one
faults       what goes wrong, where, how often
pace         the line: latency, and bandwidth as token buckets
depot        all that one stand-in has: settings, shelf, uploads, faults, line, tally
server       sockets and threads
exchange     one request and its reply, with whatever befalls them
operations   which function carries out which operation: objects, lists, multipart
control      commands as JSON under /_stand/
ceiling      how fast it is, beside bare loops: python -m s3stand.ceiling
wire, memory bytes that are copied once, by the kernel, into memory that is used again
"""

from s3stand.depot import Settings
from s3stand.faults import Fault
from s3stand.pace import S3_LIKE, Link
from s3stand.stand import BadCommand, Stand, in_process, in_thread
from s3stand.tally import Counts, Entry

__all__ = [
    "S3_LIKE",
    "BadCommand",
    "Counts",
    "Entry",
    "Fault",
    "Link",
    "Settings",
    "Stand",
    "in_process",
    "in_thread",
]
