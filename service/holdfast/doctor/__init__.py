"""Checks of everything that a job needs, as findings with remedies, for `holdfast doctor`.

findings     the result of a check
machine      Python and torch
service      the service and its launchers
stores       checkpoint stores in buckets and directories
performance  disk, cores, loopback and store
"""

from holdfast.doctor.findings import Finding, Grade
from holdfast.doctor.machine import check_machine
from holdfast.doctor.performance import measure_performance
from holdfast.doctor.service import check_service
from holdfast.doctor.stores import check_distance, check_store, store_in

__all__ = [
    "Finding",
    "Grade",
    "check_distance",
    "check_machine",
    "check_service",
    "check_store",
    "measure_performance",
    "store_in",
]
