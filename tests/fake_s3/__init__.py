"""A stand-in for S3: objects in memory, as fast as the loopback, and as unreliable as a test asks for.

    with fake_s3.in_thread() as stand:  # or in_process(), for benchmarks
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
ceiling      how fast it is, beside bare loops: python -m fake_s3.throughput
wire, memory bytes that are copied once, by the kernel, into memory that is used again
"""

from fake_s3.counters import Counts, Entry
from fake_s3.faults import Fault
from fake_s3.handle import BadCommand, FakeS3, in_process, in_thread
from fake_s3.pace import S3_LIKE, Link
from fake_s3.state import Settings

__all__ = [
    "S3_LIKE",
    "BadCommand",
    "Counts",
    "Entry",
    "FakeS3",
    "Fault",
    "Link",
    "Settings",
    "in_process",
    "in_thread",
]
