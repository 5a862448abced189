"""Collecting what workers left in their checkpoint stores, as they do not reach the service.

box          what a store holds of such reports, by sender, the oldest first
collector    whose box is opened when, and what is done with what is in it
"""

from holdfast.background.report_import.importer import ReportImporter

__all__ = ["ReportImporter"]
