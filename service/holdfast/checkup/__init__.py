"""A look at everything that a job needs, from where a person sits: findings, each with what to do. `holdfast doctor`.

findings   what a finding is
machine    Python and torch here
service    the service, and the engine that it launches through
stores     the checkpoint store of a job, tried from here
bucket     one that is a bucket
folder     one that is a folder
speed      how quick disk, cores, loopback and store are
"""

from holdfast.checkup.findings import Finding, Grade
from holdfast.checkup.machine import look_at_machine
from holdfast.checkup.service import look_at_service
from holdfast.checkup.speed import look_at_speed
from holdfast.checkup.stores import store_in, try_store

__all__ = [
    "Finding",
    "Grade",
    "look_at_machine",
    "look_at_service",
    "look_at_speed",
    "store_in",
    "try_store",
]
