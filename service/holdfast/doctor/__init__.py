"""A look at everything that a job needs, from where a person sits: findings, each with what to do. `holdfast doctor`.

findings   what a finding is
machine    Python and torch here
service    the service, and the engine that it launches through
stores     the checkpoint store of a job, tried from here
bucket     one that is a bucket
folder     one that is a folder
speed      how quick disk, cores, loopback and store are
"""

from holdfast.doctor.findings import Finding, Grade
from holdfast.doctor.machine import check_machine
from holdfast.doctor.performance import measure_performance
from holdfast.doctor.service import look_at_service
from holdfast.doctor.stores import store_in, try_store

__all__ = [
    "Finding",
    "Grade",
    "check_machine",
    "look_at_service",
    "measure_performance",
    "store_in",
    "try_store",
]
