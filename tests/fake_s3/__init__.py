"""A fake S3: objects in memory, at the speed of loopback, with faults that tests inject.

    with fake_s3.in_thread() as s3:  # or in_process(), for benchmarks
        client = boto3.client("s3", endpoint_url=s3.endpoint)
        s3.fault("error", code="SlowDown", on="PutObject", key="*/commits/*", count=2)

handle       the handle of a server, in a thread or a process
faults       which requests fail, how and how often
pace         the network link: latency, and bandwidth as token buckets
state        all state of a server: settings, buckets, uploads, faults, link, counters
server       sockets and threads
exchange     one request and its reply, with the faults that apply to them
clouds       the protocols of Google and Azure, for the same objects and faults
operations   the function of each operation: objects, lists, multipart
control      commands as JSON under /_stand/
throughput   its throughput, compared with plain socket loops: python -m fake_s3.throughput
wire, memory bytes that the kernel copies once, into memory that is reused
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
